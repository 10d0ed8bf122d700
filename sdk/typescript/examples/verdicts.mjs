// Shows how each frame of a camera stands against its bounds, and counts those that kept both.
//
//     scripts/sdk-typescript sdk/typescript/examples/verdicts.mjs https://127.0.0.1:7080 cam1 tidegate-data/pki [FRAMES]

import { readFileSync } from "node:fs";

import { connect } from "../dist/index.js";

const [url, camera, pki, frames = "20"] = process.argv.slice(2);
if (pki === undefined) {
  console.error("usage: verdicts.mjs URL CAMERA FOLDER-OF-CERTIFICATES [FRAMES]");
  process.exit(2);
}
const file = (name) => readFileSync(`${pki}/${name}`, "utf8");
const node = await connect(url, { ca: file("ca.pem"), cert: file("application.pem"), key: file("application.key") });
let kept = 0;
let seen = 0;
for await (const frame of node.frames(camera, { latencyMs: 2000, accuracy: 0.5, onEvent: console.log })) {
  const { latencyMs, accuracy, knobs } = frame.verdict;
  console.log(`${frame.capturedAt.toISOString()} ${latencyMs.toFixed(1)} ms, accuracy ${accuracy.toFixed(2)}, ${knobs}`);
  kept += frame.verdict.kept ? 1 : 0;
  if (++seen === Number(frames)) break;
}
console.log(`${kept} of ${seen} frames kept both bounds`);
node.close();
