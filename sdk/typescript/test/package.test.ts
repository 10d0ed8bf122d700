/** The package as it is installed. */

import assert from "node:assert/strict";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import * as source from "../src/index.js";

const FOLDER = resolve(dirname(fileURLToPath(import.meta.url)), "../..");

test("it is imported by its name, with its types", async () => {
  const name = "tidegate";
  const installed = (await import(name)) as Record<string, unknown>;
  assert.deepEqual(Object.keys(installed).sort(), Object.keys(source).sort());
  const described = JSON.parse(readFileSync(join(FOLDER, "package.json"), "utf8")) as Record<string, unknown>;
  assert.equal(described["dependencies"], undefined, "it needs nothing but its platform");
  assert.ok(existsSync(join(FOLDER, "dist/index.d.ts")));
});

test("a browser meets nothing of Node.js but behind an import of its own", () => {
  const dist = join(FOLDER, "dist");
  for (const file of readdirSync(dist).filter((each) => each.endsWith(".js") && each !== "transport_node.js")) {
    const text = readFileSync(join(dist, file), "utf8");
    assert.ok(!/from "node:|require\(/.test(text), file);
    assert.equal(/^import .*transport_node/m.test(text), false, file);
  }
});

test("the lock file names no registry", () => {
  assert.ok(!/"resolved"/.test(readFileSync(join(FOLDER, "package-lock.json"), "utf8")));
});
