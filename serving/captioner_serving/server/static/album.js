// Photos, captions and corrections, stored in this browser for all of its tabs. The server stores none.
// "visits" has the fields of each photo and their version, "files" its picture. A write is one transaction that
// changes only the fields it names; the other tabs are told the keys.
const AGE = 7 * 24 * 3600 * 1000, UNDO = 3600 * 1000;  // milliseconds
const PHOTO = 1.5e6;            // bytes that a photo and its record take at most
const LEAST = 300, MOST = 1000; // photos
const channel = new BroadcastChannel("captioner");

function open() {
  return new Promise((done, failed) => {
    const request = indexedDB.open("captioner", 4);
    request.onupgradeneeded = () => {
      for (const name of ["visits", "files"]) {
        if (!request.result.objectStoreNames.contains(name)) request.result.createObjectStore(name);
      }
    };
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}

const result = (request) => new Promise((done, failed) => {
  Object.assign(request, { onsuccess: () => done(request.result), onerror: () => failed(request.error) });
});

// Run work(visits, files) in one transaction.
async function use(mode, work) {
  const database = await open();
  try {
    const transaction = database.transaction(["visits", "files"], mode);
    const complete = new Promise((done, failed) => Object.assign(transaction, { oncomplete: done, onabort: () => failed(transaction.error) }));
    return (await Promise.all([work(...["visits", "files"].map((name) => transaction.objectStore(name))), complete]))[0];
  } finally {
    database.close();
  }
}

// A key is the time of the visit, for its age and order.
let last = 0;
export const newKey = () => (last = Math.max(Date.now(), Math.floor(last) + 1) + Math.random());

export const keptUntil = (key) => new Date(key + AGE);

// The number of photos that a list may have: as many as the browser grants, and at least 300.
export async function capacity(count) {
  const { quota = 0, usage = 0 } = await navigator.storage?.estimate().catch(() => ({})) ?? {};
  return Math.max(LEAST, Math.min(MOST, count + Math.floor((quota - usage) / PHOTO)));
}

// Change fields of a photo. Returns its version, or null if it was deleted. Throws if the browser cannot store it.
export async function write(key, { file, ...fields }, isNew) {
  const version = await use("readwrite", async (visits, files) => {
    const old = await result(visits.get(key));
    if (!old && !isNew) return null;
    if (file) files.put(file, key);
    visits.put({ ...old, ...fields, version: (old?.version ?? 0) + 1 }, key);
    return (old?.version ?? 0) + 1;
  });
  channel.postMessage([key]);
  return version;
}

export async function remove(keys) {
  await use("readwrite", async (...stores) => { for (const store of stores) for (const key of keys) store.delete(key); }).catch(() => {});
  channel.postMessage(keys);
}

// Photos as { key, file, ...fields }; undefined for those that were deleted.
export async function read(keys) {
  return use("readonly", (...stores) => Promise.all(keys.map(async (key) => {
    const [visit, file] = await Promise.all(stores.map((store) => result(store.get(key))));
    return visit && entryOf(key, visit, file);
  }))).catch(() => []);
}

// All stored photos, oldest first.
export async function all() {
  await sweep().catch(() => {});
  const keys = await use("readonly", (visits) => result(visits.getAllKeys())).catch(() => []);
  return (await read(keys)).filter(Boolean);
}

// Records of version 3 have the file beside the other fields, and `accepted` for reviewed.
const entryOf = (key, visit, file) => ({ sentence: 0, reviewed: visit.accepted || visit.text !== undefined, ...visit, key, ...(file && { file }) });

// Delete what is older than a week, but no person's words, and what was removed an hour ago. Returns their keys.
export async function sweep() {
  const deleted = await use("readwrite", async (visits, files) => {
    const [keys, entries] = await Promise.all([result(visits.getAllKeys()), result(visits.getAll())]), now = Date.now();
    const isOld = ({ removed, text }, key) => (removed ? removed < now - UNDO : text === undefined && key < now - AGE);
    const old = keys.filter((key, at) => isOld(entries[at], key));
    for (const store of [visits, files]) for (const key of old) store.delete(key);
    return old;
  });
  if (deleted.length) channel.postMessage(deleted);
  return deleted;
}

// onChange(keys) is called when another tab has changed or deleted photos.
export function listen(onChange) {
  channel.onmessage = ({ data }) => onChange(data);
}
