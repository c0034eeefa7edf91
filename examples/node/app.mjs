// Label pictures with a device's model: npm install, then node app.mjs [--json] STATE PICTURE...
// STATE is the agent's state folder. From FedEdge it needs only the two small files in ../web.

import { webcrypto } from "node:crypto";
import { readFileSync, realpathSync } from "node:fs";
import { join } from "node:path";

import * as ort from "onnxruntime-node";
import sharp from "sharp";

import { chosen, classify, load } from "../web/model.mjs";

globalThis.crypto ??= webcrypto; // Node.js 18 has it under this name only

// Resolve the link once, so that manifest and model are of the same version.
async function current(state) {
  const folder = realpathSync(join(state, "models", "current"));
  const manifest = JSON.parse(readFileSync(join(folder, "manifest.json"), "utf8"));
  const options = { intraOpNumThreads: 1, interOpNumThreads: 1 };
  const model = readFileSync(join(folder, chosen(manifest).file));
  return { manifest, session: await load(ort, model, manifest, options) };
}

// Upright, with the file's own colours: training ignores colour profiles too.
async function decoded(file) {
  const picture = sharp(file, { ignoreIcc: true }).autoOrient().removeAlpha().toColourspace("srgb");
  const { data, info } = await picture.raw().toBuffer({ resolveWithObject: true });
  return { data, width: info.width, height: info.height, step: info.channels };
}

async function main(given) {
  const json = given[0] === "--json";
  const [state, ...files] = json ? given.slice(1) : given;
  if (files.length === 0) throw new Error("usage: node app.mjs [--json] STATE PICTURE...");
  const { manifest, session } = await current(state);
  for (const file of files) {
    const answer = await classify(ort, session, manifest, await decoded(file));
    const [label, probability] = answer[0];
    console.log(json ? JSON.stringify(answer) : `${file}: ${label} ${probability.toFixed(4)}`);
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`app.mjs: ${error.message}`);
  process.exitCode = 2;
});
