// The page: choose the model's two files, then a picture. Nothing leaves the browser.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
import { classify, load } from "./model.mjs";

ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url).href;
ort.env.wasm.numThreads = 1;

const element = (id) => document.getElementById(id);
let loaded = null;

function say(text) {
  element("answer").textContent = text;
}

// Upright, covering the model's size, cropped around the centre: as in training.
async function sized(file, [, height, width]) {
  const picture = await createImageBitmap(file, { imageOrientation: "from-image" });
  const scale = Math.max(width / picture.width, height / picture.height);
  const [wide, high] = [picture.width * scale, picture.height * scale];
  const canvas = element("picture-shown");
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, (width - wide) / 2, (height - high) / 2, wide, high);
  return context.getImageData(0, 0, width, height).data;
}

async function takeModel(files) {
  const byName = Object.fromEntries(Array.from(files, (file) => [file.name, file]));
  if (!byName["model.onnx"] || !byName["manifest.json"]) {
    throw new Error("choose both files of models/current: model.onnx and manifest.json");
  }
  const manifest = JSON.parse(await byName["manifest.json"].text());
  const session = await load(ort, await byName["model.onnx"].arrayBuffer(), manifest);
  loaded = { manifest, session };
  element("picture").disabled = false;
  say(`${manifest.labels.length} labels; now choose a picture`);
}

async function takePicture([file]) {
  const { manifest, session } = loaded;
  const best = await classify(ort, session, manifest, await sized(file, manifest.input.shape));
  say(best.slice(0, 3).map(([label, p]) => `${label} ${(100 * p).toFixed(1)} %`).join("\n"));
}

for (const [id, take] of Object.entries({ model: takeModel, picture: takePicture })) {
  element(id).addEventListener("change", (event) => {
    take(event.target.files).catch((error) => say(error.message));
  });
}
