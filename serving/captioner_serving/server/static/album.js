// Photos and their results, stored in this browser for the strip, Back and reloads. The server stores
// none. If the browser cannot store them, they are lost on a reload.
const AGE = 24 * 3600 * 1000;  // milliseconds
export const MOST = 100;       // visits

function open() {
  return new Promise((done, failed) => {
    const request = indexedDB.open("captioner", 3);
    request.onupgradeneeded = () => {
      for (const name of [...request.result.objectStoreNames]) request.result.deleteObjectStore(name);
      request.result.createObjectStore("visits");
    };
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}

async function use(mode, makeRequests) {
  let database = null;
  try {
    database = await open();
    const transaction = database.transaction("visits", mode), requests = makeRequests(transaction.objectStore("visits"));
    await new Promise((done, failed) => Object.assign(transaction, { oncomplete: done, onabort: failed }));
    return requests.map((request) => request.result);
  } catch {
    return undefined;
  } finally {
    database?.close();
  }
}

// A key is the time of the visit, for its age and order.
let last = 0;
export const newKey = () => (last = Math.max(Date.now(), Math.floor(last) + 1) + Math.random());

// Store pairs [key, visit], all or none. Returns false if the browser cannot.
export async function put(visits) {
  const stored = await use("readwrite", (store) => visits.map(([key, visit]) => store.put(visit, key)));
  await sweep();
  return Boolean(stored);
}

export const remove = (key) => use("readwrite", (store) => [store.delete(key)]);

// All stored visits, oldest first.
export async function all() {
  await sweep();
  const [keys, visits] = await use("readonly", (store) => [store.getAllKeys(), store.getAll()]) ?? [[], []];
  return visits.map((visit, at) => ({ sentence: 0, head: null, ...visit, key: keys[at], stored: true }));
}

export const clear = () => use("readwrite", (store) => [store.clear()]);

export async function sweep() {
  const [keys] = await use("readonly", (store) => [store.getAllKeys()]) ?? [[]];
  const old = keys.filter((key, index) => key < Date.now() - AGE || index < keys.length - MOST);
  if (old.length) await use("readwrite", (store) => [store.delete(IDBKeyRange.upperBound(old.at(-1)))]);
}
