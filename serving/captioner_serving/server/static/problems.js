// What went wrong, in words for people: a title, what to do, and whether trying again can help.
const megabytes = (bytes) => Math.round(bytes / 1e5) / 10 + " MB";

export const problems = {
  many: (count) => ({
    title: "One photo at a time",
    detail: `These are ${count}. For many photos there is the HTTP API, and on the command line captioner batch.`,
  }),
  tooLarge: (name, limit) => ({
    title: "The photo is too large",
    detail: `${name} has more than the ${megabytes(limit)} that this server takes. Save it smaller, and choose it again.`,
  }),
  unreadable: (name) => ({
    title: "The file cannot be read",
    detail: `${name} is a folder, or has been moved or changed meanwhile. Choose the photo again.`,
  }),
  unreachable: () => ({
    title: "The server does not answer",
    detail: "It may have been stopped, or the network is down.",
    again: true,
  }),
  interrupted: () => ({
    title: "The server stopped before it had finished",
    detail: "There is no caption of this photo yet.",
    again: true,
  }),
  expired: () => ({
    title: "The photo is no longer kept",
    detail: "The server deletes photos within ten minutes. This browser has it still.",
    again: true,
  }),
  unseen: () => ({
    title: "The photo did not arrive whole",
    detail: "The connection was interrupted, or the browser cannot show it.",
    again: true,
  }),
  noClipboard: () => "Over plain http a browser lets no button read the clipboard. "
    + "Press Ctrl+V (on a Mac ⌘V) instead: that always works.",
  clipboardRefused: () => "The browser did not let the page read the clipboard. "
    + "Allow it beside the page's address, or press Ctrl+V (on a Mac ⌘V).",
};

const WORDS = {
  "busy": { title: "Too many photos are waiting", detail: "The server takes no more at the moment. Try again in a few seconds.", again: true },
  "closing": { title: "The server is shutting down", detail: "It takes no more photos. If it is starting anew, try again soon.", again: true },
  "upload-too-slow": { title: "The photo took too long to arrive", detail: "The connection is slow. A smaller photo arrives sooner.", again: true },
  "gone": { title: "The photo is no longer kept", detail: "Photos are deleted within ten minutes. Choose it again.", expired: true },
};

// From the server's own problem document.
export function fromServer(problem, status) {
  if (problem?.type in WORDS) return WORDS[problem.type];
  return {
    title: problem?.title ?? "The server could not do this",
    detail: problem?.detail ?? `It answered with the status ${status}.`,
    again: status >= 500,
  };
}
