// The photo that waits for its caption, kept by the browser: a reload sends it again.
const AGE = 10 * 60 * 1000;  // milliseconds; the server keeps photos no longer

function open() {
  return new Promise((done, failed) => {
    const request = indexedDB.open("captioner", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("waiting");
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
  });
}

// What cannot be kept (a private window, a full disk) is not: then a reload says that it is gone.
async function use(mode, ask) {
  let database = null;
  try {
    database = await open();
    const transaction = database.transaction("waiting", mode);
    const request = ask(transaction.objectStore("waiting"));
    await new Promise((done, failed) => {
      transaction.oncomplete = done;
      transaction.onabort = () => failed(transaction.error);
    });
    return request.result;
  } catch {
    return undefined;
  } finally {
    database?.close();
  }
}

// A tab that was closed while its photo waited leaves it behind: the next visit deletes it.
const sweep = () => use("readwrite", (store) => store.delete(IDBKeyRange.upperBound(Date.now() - AGE)));

// Those that a tab left behind lately become old while this one is open.
export function sweepSoon() {
  sweep();
  setTimeout(sweep, AGE + 1000);
}

// Keep a file, and tell its key at once: the time, so that old ones are found.
export function keep(file) {
  const key = Date.now() + Math.random();
  use("readwrite", (store) => store.put(file, key));
  setTimeout(sweep, AGE + 1000);
  return key;
}

export async function find(key) {
  await sweep();
  return use("readonly", (store) => store.get(key));
}

export const drop = (key) => use("readwrite", (store) => store.delete(key));
