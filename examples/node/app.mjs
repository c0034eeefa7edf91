// Label pictures with a device's model: npm install, then node app.mjs STATE PICTURE...
// STATE is the agent's state folder. Nothing of FedEdge is needed here.

import { createHash } from "node:crypto";
import { readFileSync, realpathSync } from "node:fs";
import { join } from "node:path";

import * as ort from "onnxruntime-node";
import sharp from "sharp";

// The link is followed once, so that the two files belong together.
async function load(state) {
  const folder = realpathSync(join(state, "models", "current"));
  const manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
  const model = readFileSync(join(folder, "model.onnx"));
  if (createHash("sha256").update(model).digest("hex") !== manifest.sha256) {
    throw new Error(`${folder}: the model is not the one of its manifest`);
  }
  const options = { intraOpNumThreads: 1, interOpNumThreads: 1 };
  return { manifest, session: await ort.InferenceSession.create(model, options) };
}

// As in training: upright, cropped around the centre to the model's proportions, then scaled.
async function scaled(picture, height, width) {
  const upright = sharp(picture).rotate().removeAlpha().toColourspace("srgb").raw();
  const { data, info } = await upright.toBuffer({ resolveWithObject: true });
  const wide = Math.round(Math.min(info.width, (info.height * width) / height));
  const high = Math.round(Math.min(info.height, (info.width * height) / width));
  const [left, top] = [Math.floor((info.width - wide) / 2), Math.floor((info.height - high) / 2)];
  const cropped = sharp(data, { raw: info }).extract({ left, top, width: wide, height: high });
  return cropped.resize(width, height, { fit: "fill", kernel: "linear" }).raw().toBuffer();
}

// Channels first, grey or RGB.
async function pixels(picture, [channels, height, width]) {
  const rgb = await scaled(picture, height, width);
  const area = width * height;
  const planes = new Uint8Array(channels * area);
  for (let i = 0; i < area; i++) {
    const [red, green, blue] = rgb.subarray(3 * i, 3 * i + 3);
    const grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16;
    const values = channels === 1 ? [grey] : [red, green, blue];
    values.forEach((value, plane) => (planes[plane * area + i] = value));
  }
  return planes;
}

const [state, ...pictures] = process.argv.slice(2);
if (pictures.length === 0) {
  console.error("usage: node app.mjs STATE PICTURE...");
  process.exit(2);
}
const { manifest, session } = await load(state);
const { name, shape } = manifest.input;
for (const picture of pictures) {
  const image = new ort.Tensor("uint8", await pixels(picture, shape), [1, ...shape]);
  const { probabilities } = await session.run({ [name]: image });
  const best = probabilities.data.indexOf(Math.max(...probabilities.data));
  console.log(`${picture}: ${manifest.labels[best]} ${probabilities.data[best].toFixed(4)}`);
}
