// A photo dropped or pasted anywhere on the page goes into the photo field, as if dropped there.
() => {
  const field = () => document.getElementById("photo");
  const input = () => field()?.querySelector('input[type="file"]');
  const pictureIn = (data) => [...(data?.files ?? [])].find((file) => file.type.startsWith("image/"));

  async function take(file) {
    if (!input()) field()?.querySelector('button[aria-label="Remove Image"]')?.click();
    for (let wait = 0; wait < 40 && !input(); wait++) await new Promise((done) => setTimeout(done, 25));
    const target = input();
    if (!target) return;
    const carrier = new DataTransfer();
    carrier.items.add(file);
    target.files = carrier.files;
    target.dispatchEvent(new Event("change", { bubbles: true }));
  }

  const inField = (event) => input() && field()?.contains(event.target);
  addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    field()?.classList.add("dropping");
    if (!inField(event)) event.preventDefault();
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) field()?.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    field()?.classList.remove("dropping");
    if (inField(event)) return;  // Gradio takes it
    event.preventDefault();      // or the browser would leave the page to show the photo
    const file = pictureIn(event.dataTransfer);
    if (file) take(file);
  });
  addEventListener("paste", (event) => {
    const file = pictureIn(event.clipboardData);
    if (file) { event.preventDefault(); take(file); }
  });
}
