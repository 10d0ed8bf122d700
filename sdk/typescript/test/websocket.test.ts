/** The WebSocket of Node.js, byte by byte, against a server of this test. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import * as net from "node:net";
import { test, type TestContext } from "node:test";

import { LinkDownError, type TidegateError } from "../src/index.js";
import { addressOf, type Listener, type Socket } from "../src/transport.js";
import { NodeTransport } from "../src/transport_node.js";
import { poll } from "./fake_node.js";

class Heard implements Listener {
  readonly messages: (string | Buffer)[] = [];
  readonly ends: TidegateError[] = [];
  text(text: string): void {
    this.messages.push(text);
  }
  bytes(bytes: Uint8Array): void {
    this.messages.push(Buffer.from(bytes));
  }
  closed(error: TidegateError): void {
    this.ends.push(error);
  }
}

/** A connection whose opening was answered; `peer` is the server's side of it. */
async function opened(t: TestContext, accept?: string): Promise<{ socket: Socket; peer: net.Socket; heard: Heard }> {
  const server = net.createServer();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const transport = new NodeTransport(addressOf(`http://127.0.0.1:${(server.address() as net.AddressInfo).port}`), { token: "t" });
  const heard = new Heard();
  const opening = transport.open("/path?x=1", heard, new AbortController().signal);
  const [peer] = (await once(server, "connection")) as [net.Socket];
  t.after(() => {
    peer.destroy();
    server.close();
    transport.close();
  });
  const [head] = (await once(peer, "data")) as [Buffer];
  const lines = head.toString().split("\r\n");
  assert.equal(lines[0], "GET /path?x=1 HTTP/1.1");
  assert.ok(lines.some((line) => line.toLowerCase() === "authorization: bearer t"));
  const key = /sec-websocket-key: (.*)/i.exec(head.toString())?.[1] ?? "";
  const expected = createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
  peer.write(`HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept ?? expected}\r\n\r\n`);
  return { socket: await opening, peer, heard };
}

function frame(first: number, body: Buffer | string): Buffer {
  const bytes = Buffer.from(body);
  const length = bytes.byteLength;
  const head = length < 126 ? [length] : length < 65536 ? [126, length >> 8, length & 255] : [127, 0, 0, 0, 0, ...[24, 16, 8, 0].map((by) => (length >> by) & 255)];
  return Buffer.concat([Buffer.from([first, ...head]), bytes]);
}

test("messages of every length come whole, in pieces of every size", { timeout: 20_000 }, async (t) => {
  const { peer, heard } = await opened(t);
  const bodies = [0, 1, 125, 126, 65535, 65536, 200_000].map((length) => Buffer.alloc(length, length));
  const all = Buffer.concat([...bodies.map((body) => frame(0x82, body)), frame(0x81, "text ü")]);
  // Three bytes at a time for the heads, larger ones for the rest.
  let at = 0;
  for (const piece of [...Array<number>(300).fill(3), 7, 65_000, 65_000, 65_000, all.byteLength]) {
    if (!peer.write(all.subarray(at, at + piece))) await once(peer, "drain");
    at += piece;
    await new Promise((resolve) => setImmediate(resolve));
  }
  await poll(() => heard.messages.length === bodies.length + 1);
  assert.ok(bodies.every((body, place) => body.equals(heard.messages[place] as Buffer)));
  assert.equal(heard.messages.at(-1), "text ü");
});

test("fragments are joined, with control frames between them; a ping is answered", { timeout: 20_000 }, async (t) => {
  const { peer, heard } = await opened(t);
  const answer = once(peer, "data");
  peer.write(Buffer.concat([frame(0x01, "one "), frame(0x89, "are you there"), frame(0x00, "two "), frame(0x80, "three"), frame(0x82, "b")]));
  await poll(() => heard.messages.length === 2);
  assert.deepEqual(heard.messages, ["one two three", Buffer.from("b")]);
  const [pong] = (await answer) as [Buffer];
  assert.equal(pong[0], 0x8a);
  assert.equal(unmasked(pong).toString(), "are you there");
});

test("messages leave masked, of every length, and a close is said", { timeout: 20_000 }, async (t) => {
  const { socket, peer } = await opened(t);
  for (const length of [0, 5, 125, 126, 65535, 65536]) {
    const body = Buffer.from(Array.from({ length }, (_, place) => place & 255));
    const head = length < 126 ? 2 : length < 65536 ? 4 : 10;
    let got = Buffer.alloc(0);
    const take = (part: Buffer): unknown => (got = Buffer.concat([got, part]));
    peer.on("data", take);
    socket.send(body);
    await poll(() => got.byteLength >= head + 4 + length);
    peer.off("data", take);
    assert.equal(got[0], 0x82);
    assert.ok(unmasked(got).equals(body), `${length}`);
  }
  const last = once(peer, "data");
  socket.close();
  const [said] = (await last) as [Buffer];
  assert.deepEqual([said[0], [...unmasked(said)]], [0x88, [3, 0xe8]]);
});

test("an end is told once, with its reason", { timeout: 20_000 }, async (t) => {
  for (const [bytes, code, text] of [
    [frame(0x88, Buffer.concat([Buffer.from([1013 >> 8, 1013 & 255]), Buffer.from("busy")])), "limit.reached", /busy/],
    [frame(0x88, ""), "link.down", /1005/],
    [frame(0xc2, "x"), "link.protocol", /extension/],
    [Buffer.from([0x82, 0x81, 0, 0, 0, 0, 0]), "link.protocol", /mask/],
    [frame(0x80, "x"), "link.protocol", /out of turn/],
    [Buffer.concat([frame(0x02, "x"), frame(0x82, "y")]), "link.protocol", /out of turn/],
    [frame(0x83, "x"), "link.protocol", /kind 3/],
    [frame(0x09, "x"), "link.protocol", /control/],
    [Buffer.from([0x82, 127, 0, 0, 1, 0, 0, 0, 0, 0]), "link.protocol", /more than/],
  ] as const) {
    const { peer, heard } = await opened(t);
    peer.write(bytes);
    const error = await poll(() => heard.ends[0]);
    assert.ok(error.code === code && text.test(error.message), `${error.code} ${error.message}`);
    peer.write(frame(0x81, "more"));
    await poll(() => peer.destroyed || peer.readableEnded || peer.closed);
    assert.equal(heard.ends.length, 1);
    assert.deepEqual(heard.messages, []);
  }
  const { peer, heard } = await opened(t);
  peer.destroy();
  assert.ok((await poll(() => heard.ends[0])) instanceof LinkDownError);
});

test("an opening that is another's is refused", { timeout: 20_000 }, async (t) => {
  await assert.rejects(opened(t, "bm90IHlvdXJz"), { code: "link.protocol" });
});

function unmasked(bytes: Buffer): Buffer {
  const short = (bytes[1] as number) & 127;
  assert.ok(((bytes[1] as number) & 128) !== 0, "masked");
  const begin = short < 126 ? 2 : short === 126 ? 4 : 10;
  const mask = bytes.subarray(begin, begin + 4);
  return Buffer.from(bytes.subarray(begin + 4).map((byte, place) => byte ^ (mask[place & 3] as number)));
}

test("an answer before the body is read reaches its asker", { timeout: 60_000 }, async (t) => {
  const bodies: number[] = [];
  const answer = "HTTP/1.1 401 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
  // As of a node that has read enough, whose answer is lost where sending fails before it is looked at.
  const server = net.createServer((peer) => {
    peer.on("error", () => undefined);
    peer.once("data", (head: Buffer) => {
      const expects = head.toString("latin1").includes("100-continue");
      bodies.push(head.byteLength - head.indexOf("\r\n\r\n") - 4);
      peer.pause();
      if (expects) peer.end(answer);
      else peer.resetAndDestroy();
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const transport = new NodeTransport(addressOf(`http://127.0.0.1:${(server.address() as net.AddressInfo).port}`), {});
  t.after(() => {
    transport.close();
    server.close();
  });
  const got = await transport.request({ method: "POST", path: "/v1/detect/face", type: "image/jpeg", body: new Uint8Array(64 << 20) });
  assert.equal(got.status, 401);
  assert.equal(Buffer.from(got.body).toString(), "no");
  // Asked again, it was not sent.
  assert.deepEqual(bodies.slice(1), [0]);
});
