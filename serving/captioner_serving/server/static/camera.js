// The camera of this machine, in a dialog: a photo of what it sees, or null.
const WHY = {
  NotAllowedError: "The browser was not allowed to use the camera: allow it beside the page's address.",
  NotFoundError: "This machine has no camera.",
  NotReadableError: "Another program is using the camera: close it there first.",
};
const INSECURE = "Over plain http a browser gives its camera to pages of its own machine only. "
  + "Open this page over https, or take the photo with the camera's own program and choose the file.";

export async function openCamera(dialog) {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error(INSECURE);
  const video = dialog.querySelector("video");
  const stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1920 } } }).catch((error) => {
    throw new Error(WHY[error.name] ?? "The camera cannot be used: " + error.message);
  });
  video.srcObject = stream;
  dialog.returnValue = "";
  dialog.querySelector(".shoot").onclick = () => { if (video.videoWidth) dialog.close("shoot"); };
  dialog.querySelector(".close").onclick = () => dialog.close();
  dialog.showModal();
  try {
    await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
    return dialog.returnValue === "shoot" ? await photograph(video) : null;
  } finally {
    for (const track of stream.getTracks()) track.stop();
    video.srcObject = null;
  }
}

async function photograph(video) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  return new File([blob], "camera.jpg", { type: "image/jpeg" });
}
