// Caption a photo with Gradio's client: npm install @gradio/client (Node.js 18 or newer).
import { readFile } from "node:fs/promises";
import { Client } from "@gradio/client";

const client = await Client.connect("http://127.0.0.1:7860");
const image = new Blob([await readFile("photo.jpg")], { type: "image/jpeg" });
const { data } = await client.predict("/caption", { image, attention: true });
console.log(data[0].caption);
client.close();
