// A device's model with any of ONNX Runtime's JavaScript packages; no page and no file here.

import { pixels } from "./pixels.mjs";

// The file that the agent has chosen for apps, and its hash.
export function chosen(manifest) {
  return manifest.variants[manifest.use] ?? { file: "model.onnx", sha256: manifest.sha256 };
}

// Check the chosen file against its manifest and load it.
export async function load(ort, model, manifest, options = {}) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", model));
  const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (sha256 !== chosen(manifest).sha256) {
    throw new Error(`${chosen(manifest).file} is not the one that manifest.json is about: choose both anew`);
  }
  if (manifest.input.dtype !== "uint8") {
    throw new Error("this model reads texts, and this app shows it pictures");
  }
  return ort.InferenceSession.create(new Uint8Array(model), options);
}

// The labels of a decoded picture with their probabilities, best first.
export async function classify(ort, session, manifest, picture) {
  const { name, shape } = manifest.input;
  const image = new ort.Tensor("uint8", pixels(picture, shape), [1, ...shape]);
  const { probabilities } = await session.run({ [name]: image });
  const pairs = manifest.labels.map((label, i) => [label, probabilities.data[i]]);
  return pairs.sort((a, b) => b[1] - a[1]);
}
