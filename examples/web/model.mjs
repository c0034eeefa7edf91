// A device's model in a browser: no page elements here, so that it also runs in Node.js.

// Check a model against its manifest and load it into ONNX Runtime.
export async function load(ort, model, manifest) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", model));
  const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (sha256 !== manifest.sha256) {
    throw new Error("model.onnx is not the one that manifest.json is about: choose both anew");
  }
  return ort.InferenceSession.create(new Uint8Array(model));
}

// A canvas's pixels, four bytes each, as the model takes them: channels first, grey or RGB.
export function pixels(rgba, [channels, height, width]) {
  const area = width * height;
  const planes = new Uint8Array(channels * area);
  for (let i = 0; i < area; i++) {
    const [red, green, blue] = rgba.subarray(4 * i, 4 * i + 3);
    const grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16;
    const values = channels === 1 ? [grey] : [red, green, blue];
    values.forEach((value, plane) => (planes[plane * area + i] = value));
  }
  return planes;
}

// The labels with their probabilities, best first.
export async function classify(ort, session, manifest, rgba) {
  const { name, shape } = manifest.input;
  const image = new ort.Tensor("uint8", pixels(rgba, shape), [1, ...shape]);
  const { probabilities } = await session.run({ [name]: image });
  const pairs = manifest.labels.map((label, i) => [label, probabilities.data[i]]);
  return pairs.sort((a, b) => b[1] - a[1]);
}
