// The photos of this browser's visits and what came of them, so that Back and a reload show them: the
// server keeps none. What cannot be kept (a full disk, a browser that keeps nothing) is not.
const AGE = 24 * 3600 * 1000;  // milliseconds
const MOST = 30;               // visits

function open() {
  return new Promise((done, failed) => {
    const request = indexedDB.open("captioner", 2);
    request.onupgradeneeded = () => {
      for (const name of [...request.result.objectStoreNames]) request.result.deleteObjectStore(name);
      request.result.createObjectStore("visits");
    };
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}

async function use(mode, ask) {
  let database = null;
  try {
    database = await open();
    const transaction = database.transaction("visits", mode), request = ask(transaction.objectStore("visits"));
    await new Promise((done, failed) => Object.assign(transaction, { oncomplete: done, onabort: failed }));
    return request.result;
  } catch {
    return undefined;
  } finally {
    database?.close();
  }
}

// A key is the time of the visit, so that old ones are found.
export const newKey = () => Date.now() + Math.random();

export async function put(key, visit) {
  await use("readwrite", (store) => store.put(visit, key));
  await sweep();
}

export async function find(key) {
  await sweep();
  return use("readonly", (store) => store.get(key));
}

export async function sweep() {
  const keys = await use("readonly", (store) => store.getAllKeys()) ?? [];
  const old = keys.filter((key, index) => key < Date.now() - AGE || index < keys.length - MOST);
  if (old.length) await use("readwrite", (store) => store.delete(IDBKeyRange.upperBound(old.at(-1))));
}
