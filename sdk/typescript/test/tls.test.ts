/** TLS with an authority of one's own, made by openssl. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import * as https from "node:https";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { connect, IdentityRefusedError } from "../src/index.js";
import { FakeNode, sendEvent, sendFrame, USER } from "./fake_node.js";

function hasOpenssl(): boolean {
  try {
    execFileSync("openssl", ["version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}

test("a node is trusted by the authority of its site, and a caller by its certificate", { timeout: 60_000, skip: hasOpenssl() ? false : "openssl is not installed" }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "tidegate-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const openssl = (...words: string[]): unknown => execFileSync("openssl", words, { cwd: folder, stdio: "ignore" });
  const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  openssl("req", "-x509", ...key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=site", "-days", "1");
  for (const name of ["node", "caller"]) {
    writeFileSync(join(folder, "names"), "subjectAltName=DNS:edge.example,IP:127.0.0.1");
    openssl("req", ...key, "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", `/CN=${name}`);
    openssl("x509", "-req", "-in", `${name}.csr`, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", `${name}.pem`, "-days", "1", "-extfile", "names");
  }
  const file = (name: string): string => readFileSync(join(folder, name), "utf8");
  const server = https.createServer({ key: file("node.key"), cert: file("node.pem"), ca: file("ca.pem"), requestCert: true, rejectUnauthorized: false });
  const node = await FakeNode.start(server);
  t.after(() => node.stop());
  node.sockets.set("/cameras/cam1/frames", (socket) => {
    sendEvent(socket, { type: "started" });
    sendFrame(socket, 1);
  });
  const url = node.url.replace("http:", "https:");

  for (const more of [USER, { ...USER, serverName: "edge.example" }]) {
    const client = await connect(url, { ca: file("ca.pem"), ...more });
    assert.equal((await client.frames("cam1").next()).value?.camera, "cam1");
    client.close();
  }
  node.isOpen = true;
  const known = await connect(url, { ca: file("ca.pem"), cert: file("caller.pem"), key: file("caller.key") });
  known.close();
  for (const distrust of [{}, { ca: file("ca.pem"), serverName: "another.example" }]) {
    await assert.rejects(connect(url, { ...distrust, ...USER }), (error) => error instanceof IdentityRefusedError && error.message.includes("`ca`"));
  }
});
