// The page: choose the manifest and the file that it names, then a picture. Nothing leaves the browser.

import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
import { chosen, classify, load } from "./model.mjs";
import { pixels } from "./pixels.mjs";

ort.env.wasm.wasmPaths = new URL("./node_modules/onnxruntime-web/dist/", import.meta.url).href;
ort.env.wasm.numThreads = 1;

const SHOWN = 5;
const element = (id) => document.getElementById(id);
let loaded = null;

function say(text, wrong = false) {
  element("says").textContent = text;
  element("says").classList.toggle("wrong", wrong);
}

// Upright, with the file's own colours: training ignores colour profiles too.
async function decoded(file) {
  const options = { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none" };
  const picture = await createImageBitmap(file, options).catch(() => {
    throw new Error(`${file.name} is not a picture that this browser can read`);
  });
  const { width, height } = picture;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  return { data: context.getImageData(0, 0, width, height).data, width, height, step: 4 };
}

// Show the model's input on the small canvas.
function show(picture, [channels, height, width]) {
  const planes = pixels(picture, [channels, height, width]);
  const area = width * height;
  const rgba = new Uint8ClampedArray(4 * area).fill(255);
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < 3; c++) rgba[4 * i + c] = planes[(channels === 1 ? 0 : c * area) + i];
  }
  const canvas = element("seen");
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").putImageData(new ImageData(rgba, width, height), 0, 0);
}

function list(answer) {
  const rows = answer.slice(0, SHOWN).map(([label, probability]) => {
    const row = element("row").content.cloneNode(true);
    row.querySelector(".label").textContent = label;
    row.querySelector("meter").value = probability;
    row.querySelector(".share").textContent = `${(100 * probability).toFixed(1)} %`;
    return row;
  });
  element("labels").replaceChildren(...rows);
}

async function takeModel(files) {
  const byName = Object.fromEntries(Array.from(files, (file) => [file.name, file]));
  if (!byName["manifest.json"]) {
    throw new Error("choose both files of models/current: manifest.json and the model");
  }
  const manifest = JSON.parse(await byName["manifest.json"].text());
  const { file } = chosen(manifest);
  if (!byName[file]) throw new Error(`choose both files: manifest.json and ${file}, which it names`);
  const session = await load(ort, await byName[file].arrayBuffer(), manifest);
  loaded = { manifest, session };
  element("picture").disabled = false;
  element("about").textContent =
    `${manifest.device}, round ${manifest.round + 1}: ${manifest.labels.length} labels, ${manifest.use}`;
  say("Now choose a picture.");
}

async function takePicture([file]) {
  if (!file) return;
  const { manifest, session } = loaded;
  const picture = await decoded(file);
  const start = performance.now();
  const answer = await classify(ort, session, manifest, picture);
  const took = performance.now() - start;
  element("shown").src = URL.createObjectURL(file);
  show(picture, manifest.input.shape);
  list(answer);
  element("result").hidden = false;
  element("result").dataset.answer = JSON.stringify(answer);
  say(`${answer[0][0]}, in ${took.toFixed(0)} ms`);
}

for (const [id, take] of Object.entries({ model: takeModel, picture: takePicture })) {
  element(id).addEventListener("change", (event) => {
    element("result").hidden = true;
    take(event.target.files).catch((error) => say(error.message, true));
  });
}
