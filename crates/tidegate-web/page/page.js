// The page of a node: live pictures of its cameras, detections and state, by its own HTTP and WebSockets and nothing else.
//
// Times of frames are nanoseconds, more than a number of JavaScript holds exactly, so they stay text: see `exact`.

import { exact, Newest, noPicture, readDetection, sessionState, Silence } from "./messages.js";
import { drawMap, inWords, linkOf } from "./nodes.js";

const $ = (id) => document.getElementById(id);
const views = ["sign-in", "cameras", "detections", "nodes", "node"];
const DETECTIONS_MAX = 100;
/** A box belongs to a picture whose capture is at most this far from its own, in milliseconds. */
const BOX_AGE_MAX = 1500;
const LIST_EVERY = 3000;
/** What is known of the nodes is old once two lists did not come. */
const NODES_OLD = 3 * LIST_EVERY;
/** Nodes that are listed and drawn; more are counted alone. */
const NODES_MAX = 1000;
/** How often tiles look at their clocks. */
const TICK_EVERY = 250;
/** A request is answered within that time, in ms, or the node is away; a login, whose password is checked, and an original take longer. */
const ANSWER_MAX = 5000;
const SLOW_ANSWER_MAX = 30_000;
/** A stream that brings nothing for so long is opened again: a connection that broke unseen, as a roaming phone has it, never says so. */
const REOPEN_AFTER = [15_000, 120_000];
/** Tells the other tabs of this browser of a sign-out. */
const tabs = new BroadcastChannel("tidegate");
const SIGNED_OUT = "signed out";
const COLOURS = ["#ffd43b", "#4dabf7", "#ff8787", "#69db7c", "#da77f2", "#ffa94d", "#38d9a9", "#f783ac"];

const state = {
  me: null,
  /** Signs in again after a restart of the node, which forgets sessions; kept in memory while the page is open, and nowhere else. */
  authorization: null,
  away: false,
  tiles: new Map(),
  detections: [],
  unseen: 0,
  newest: new Newest(),
};

// --- Answers of the node

class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}
class Away extends Error {}

/** The answer of a request with its body, by `read`: all of it comes in time, or the node is away. */
async function call(path, read, { longest = ANSWER_MAX, ...options } = {}) {
  let answer, body;
  try {
    answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(longest), ...options });
    body = answer.ok ? await read(answer) : await answer.text();
  } catch {
    throw new Away();
  }
  if (answer.ok) return body;
  let error = { code: "", message: `the node answers ${answer.status}` };
  try {
    error = JSON.parse(body).error;
  } catch { /* an answer of something between us and the node */ }
  throw new Refused(answer.status, error.code, error.message);
}

const text = (answer) => answer.text();
const get = async (path) => exact(await call(path, text));

function socket(path) {
  const url = new URL(path, location.href);
  url.protocol = url.protocol === "http:" ? "ws:" : "wss:";
  const made = new WebSocket(url);
  made.binaryType = "blob";
  return made;
}

// --- Signing in and out

async function signIn(authorization) {
  const headers = { Authorization: authorization };
  const me = JSON.parse(await call("/v1/login", text, { method: "POST", headers, longest: SLOW_ANSWER_MAX }));
  state.authorization = authorization;
  return me;
}

$("sign-in").addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = event.target.querySelector("button");
  button.disabled = true;
  fault("");
  const bytes = new TextEncoder().encode(`${$("user").value}:${$("password").value}`);
  try {
    begin(await signIn(`Basic ${btoa(String.fromCharCode(...bytes))}`));
    $("password").value = "";
  } catch (error) {
    fault(error instanceof Away ? "The node does not answer. Try again in a moment." : sentence(error.message));
    $("password").focus();
  }
  button.disabled = false;
});

function fault(text) {
  $("sign-in-error").textContent = text;
  $("sign-in-error").hidden = !text;
}

$("sign-out").addEventListener("click", async () => {
  state.authorization = null;
  // The session is the browser's: another tab that knows the password would sign in again.
  tabs.postMessage(SIGNED_OUT);
  try {
    await call("/v1/logout", text, { method: "POST" });
  } catch { /* the session ends with its time */ }
  end();
});

tabs.addEventListener("message", ({ data }) => {
  if (data !== SIGNED_OUT) return;
  state.authorization = null;
  if (state.me) end("You signed out in another tab.");
});

/** Shows the page to a caller that is signed in. */
function begin(me) {
  state.me = me;
  document.title = `${me.node} – Tidegate`;
  $("node-name").textContent = me.node;
  $("who").textContent = me.name;
  $("nav").hidden = $("account").hidden = false;
  for (const link of document.querySelectorAll("nav .admin")) link.hidden = !me.admin;
  // A caller by certificate, and one where there is no login, has no session to end.
  $("sign-out").hidden = me.kind === "certificate" || me.kind === "node" || me.login === false;
  route();
  for (const tile of state.tiles.values()) tile.startAgain();
  list();
  watchDetections();
}

/** Back to the form. */
function end(why) {
  state.me = null;
  for (const tile of state.tiles.values()) tile.remove();
  state.tiles.clear();
  state.detections = [];
  state.newest.clear();
  Object.assign(known, { at: null, words: "" });
  $("fabric").hidden = $("no-fabric").hidden = true;
  $("nodes-note").textContent = "";
  detections.close();
  showDetections();
  $("nav").hidden = $("account").hidden = true;
  $("node-name").textContent = "";
  route();
  if (why) fault(why);
  $(state.authorization ? "password" : "user").focus();
}

// --- Whether the node is there

function notice(text, kind) {
  $("notice").textContent = text;
  $("notice").className = `notice ${kind ?? ""}`;
  $("notice").hidden = !text;
}

function setAway(is) {
  state.away = is;
  document.body.classList.toggle("away", is);
}

/** The node does not answer: says so, and tries until it does. */
async function away() {
  if (state.away) return;
  setAway(true);
  notice("The node does not answer. Trying again …", "bad");
  // Connections of a node that hangs, or is cut off, stay open and bring nothing.
  for (const tile of state.tiles.values()) if (tile.isSilent) tile.stop();
  detections.close();
  for (let wait = 500; ; wait = Math.min(wait * 1.6, 5000)) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    try {
      const me = await whoAmI();
      setAway(false);
      notice("The node is there again.", "good");
      setTimeout(() => state.away || notice(""), 4000);
      if (me) begin(me);
      else end("The node was restarted. Sign in again.");
      return;
    } catch (error) {
      // A proxy before a node that is away answers for it.
      if (!(error instanceof Away || error.status >= 500)) break;
    }
  }
  setAway(false);
  for (const tile of state.tiles.values()) tile.startAgain();
  watchDetections();
}

/** The caller; none if it has to sign in. */
async function whoAmI() {
  try {
    return JSON.parse(await call("/v1/me", text));
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 401) throw error;
  }
  if (!state.authorization) return null;
  try {
    return await signIn(state.authorization);
  } catch (error) {
    if (error instanceof Away) throw error;
    state.authorization = null;
    return null;
  }
}

/** What to do about a failure of something that goes on by itself. */
async function failed(error) {
  if (error instanceof Away) return away();
  if (error instanceof Refused && error.status === 401) {
    const me = await whoAmI().catch(() => null);
    if (me) begin(me);
    else if (state.me) end("Your session is over. Sign in again.");
    return;
  }
  notice(sentence(error.message), "bad");
}

// --- Views

function route() {
  const asked = location.hash.slice(1);
  let view = views.includes(asked) && asked !== "sign-in" ? asked : "cameras";
  if (view.startsWith("node") && !state.me?.admin) view = "cameras";
  if (!state.me) view = "sign-in";
  for (const name of views) $(`view-${name}`).hidden = name !== view;
  for (const link of $("nav").children) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "detections") state.unseen = 0;
  countUnseen();
  if (view === "node") tables();
  if (view === "nodes") nodes();
  return view;
}
window.addEventListener("hashchange", () => {
  route();
  $("main").focus();
});

// --- Cameras

let listing;
async function list() {
  clearTimeout(listing);
  if (!state.me || state.away || document.hidden) return;
  try {
    const { cameras } = await get("/cameras");
    const names = new Set(cameras.map((camera) => camera.name));
    for (const [name, tile] of state.tiles) {
      if (!names.has(name)) {
        tile.remove();
        state.tiles.delete(name);
      }
    }
    for (const camera of cameras) {
      if (!state.tiles.has(camera.name)) state.tiles.set(camera.name, new Tile(camera.name));
      state.tiles.get(camera.name).known(camera);
    }
    $("no-cameras").hidden = cameras.length > 0;
    if (!$("view-node").hidden) await tables();
    if (!$("view-nodes").hidden) await nodes();
    if (!state.away && $("notice").classList.contains("bad")) notice("");
  } catch (error) {
    await failed(error);
  }
  clearTimeout(listing);
  listing = setTimeout(list, LIST_EVERY);
}

function wish() {
  const bounds = { latency_ms: Number($("latency").value), accuracy: Number($("accuracy").value) };
  bounds.fps = Number($("fps").value) || 0;
  return bounds;
}

setInterval(() => {
  const now = performance.now();
  for (const tile of state.tiles.values()) tile.tick(now);
  sayNodesAge(now);
}, TICK_EVERY);

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.tile.inView(entry.isIntersecting);
}, { rootMargin: "200px" });

class Tile {
  constructor(name) {
    this.name = name;
    this.element = $("tile").content.firstElementChild.cloneNode(true);
    this.element.tile = this;
    this.parts = {};
    for (const part of ["canvas", "button", "h2", ".source", ".latency", ".size", ".knobs", ".accuracy", ".why", ".state", ".placeholder"]) {
      this.parts[part.replace(".", "")] = this.element.querySelector(part);
    }
    this.parts.h2.textContent = name;
    this.parts.button.addEventListener("click", () => showOriginal(this.name, this.frame?.captured_at, this.frame));
    this.label(`${name}: no picture yet`);
    this.texts = {};
    this.wait = 500;
    this.silence = new Silence();
    this.patience = REOPEN_AFTER[0];
    // In order of the names, as the node lists them.
    const after = [...$("tiles").children].find((other) => other.tile.name > name);
    $("tiles").insertBefore(this.element, after ?? null);
    seen.observe(this.element);
    this.say();
  }

  remove() {
    seen.unobserve(this.element);
    this.gone = true;
    this.stop();
    this.element.remove();
  }

  /** Takes what the list says of the camera. */
  known(camera) {
    this.camera = camera;
    const size = camera.size ? `${camera.size[0]} × ${camera.size[1]}` : "";
    const fps = camera.fps ? `${camera.fps.toFixed(camera.fps < 10 ? 1 : 0)} fps` : "";
    const at = camera.node ? `at ${camera.node}` : "";
    this.parts.source.textContent = [size, fps, at, camera.capture_clock].filter(Boolean).join(" · ");
    const unreached = sentence(camera.no_frames) || this.texts.down || "The camera is not reached.";
    this.texts.down = camera.online ? (camera.no_frames ?? "") : unreached;
    this.say();
  }

  /** Pictures are asked for only while they can be seen. */
  inView(is) {
    this.isInView = is;
    if (is && !document.hidden) this.start();
    else this.stop();
  }

  /** Whether pictures are wanted and none has come for longer than is usual. */
  get isSilent() {
    return Boolean(this.texts.silent);
  }

  /** A stream that is open says nothing of a node that hangs, or is cut off: the age of its last picture does. */
  tick(now) {
    if (!this.isAsked) return;
    const seconds = this.silence.seconds(now, 1000 / (wish().fps || Infinity));
    const silent = seconds ? noPicture(seconds) : "";
    if (silent === (this.texts.silent ?? "")) return;
    this.texts.silent = silent;
    if (silent) {
      this.live = false;
      this.numbers(this.silence.age(now));
      if (this.drawn) this.label(`${this.name}, no picture now. Show the original of the last frame`);
    }
    this.say();
    // A camera of which the node says that it is away, or gives no frames, is waited for.
    if (silent && this.socket && !this.texts.down && now - this.openedAt >= this.patience) {
      this.patience = Math.min(this.patience * 2, REOPEN_AFTER[1]);
      this.socket.close();
      this.socket = null;
      this.start();
    }
  }

  /** A picture came, or the word that it is unchanged. */
  heard() {
    this.silence.heard(performance.now());
    this.patience = REOPEN_AFTER[0];
    this.texts.silent = "";
    this.live = true;
  }

  start() {
    if (this.socket || this.gone || !state.me || state.away) return;
    clearTimeout(this.again);
    this.openedAt = performance.now();
    // While it was out of sight no picture was asked for.
    if (!this.isAsked) {
      this.isAsked = true;
      this.silence.begin(this.openedAt);
      this.live = false;
      this.texts.silent = "";
      this.say();
    }
    const query = new URLSearchParams(wish());
    this.sent = JSON.stringify(wish());
    const mine = socket(`/cameras/${encodeURIComponent(this.name)}/frames?${query}`);
    this.socket = mine;
    mine.onmessage = ({ data }) => {
      if (mine !== this.socket) return;
      if (typeof data === "string") this.event(exact(data));
      else this.picture(data);
    };
    mine.onclose = ({ code, reason }) => {
      if (mine !== this.socket) return;
      this.socket = null;
      this.live = false;
      this.texts.closed = sentence(reason) || "The stream broke off; trying again.";
      this.say();
      if (code === 1006 || code === 1001) setTimeout(list, 200);
      this.again = setTimeout(() => this.isInView && !document.hidden && this.start(), this.wait);
      this.wait = Math.min(this.wait * 2, 10000);
    };
  }

  /** Begins again without a wait, after the node was away. */
  startAgain() {
    this.wait = 500;
    this.inView(this.isInView);
  }

  stop() {
    clearTimeout(this.again);
    this.isAsked = state.away && this.isInView && !document.hidden && !this.gone;
    const { socket } = this;
    this.socket = null;
    socket?.close();
  }

  /** Asks for other bounds. */
  update() {
    const asked = JSON.stringify(wish());
    if (asked === this.sent || this.socket?.readyState !== WebSocket.OPEN) return;
    this.sent = asked;
    this.socket.send(JSON.stringify({ type: "update", ...wish() }));
  }

  event(event) {
    const { texts } = this;
    switch (event.type) {
      case "started":
      case "updated":
        this.bounds = event;
        texts.closed = texts.error = "";
        this.wait = 500;
        break;
      case "frame":
        this.frame = event;
        texts.reason = event.reason ?? "";
        texts.down = "";
        this.heard();
        this.numbers();
        break;
      case "unchanged":
        this.frame = { ...this.frame, latency_ms: event.latency_ms };
        this.heard();
        this.numbers();
        break;
      case "infeasible": texts.infeasible = event.text; break;
      case "feasible": texts.infeasible = ""; break;
      case "camera_offline":
      case "no_frames":
        texts.down = event.text;
        this.live = false;
        break;
      case "camera_online": texts.down = ""; break;
      case "knobs_changed": texts.reason = event.text; break;
      case "accuracy_assumed": texts.assumed = event.text; break;
      case "controller_failed": texts.error = event.text; break;
      case "ended": texts.closed = event.text; break;
      case "error": texts.error = event.message; break;
    }
    this.say();
  }

  /** What is known of the last frame; `more` is how long it is shown already, in ms. */
  numbers(more = 0) {
    const { frame, bounds, parts } = this;
    if (!frame?.size) return;
    const age = frame.latency_ms + more;
    put(parts.latency, age < 1 ? "< 1 ms" : `${Math.round(age)} ms`, bounds && `of ${bounds.latency_ms}`);
    parts.latency.classList.toggle("over", Boolean(bounds) && age > bounds.latency_ms);
    put(parts.size, bytes(frame.bytes), frame.bytes < frame.original_bytes && `of ${bytes(frame.original_bytes)}`);
    put(parts.knobs, frame.knobs);
    put(parts.accuracy, frame.accuracy.toFixed(2), bounds && `of ${bounds.accuracy}`);
    parts.accuracy.classList.toggle("over", !frame.accuracy_kept);
  }

  /** The state, and the sentence that says why. */
  say() {
    const { texts, parts } = this;
    const wrong = texts.error || texts.down || texts.closed || texts.silent || texts.infeasible;
    const isDown = Boolean(texts.down || texts.closed || texts.silent);
    const isLate = this.live && (texts.infeasible || parts.latency.classList.contains("over"));
    const down = texts.silent ? sentence(texts.silent).slice(0, -1) : "No picture";
    parts.state.textContent = isDown ? down : this.live ? (isLate ? "Late" : "Live") : "Waiting";
    parts.state.className = `state ${isDown ? "down" : this.live ? (isLate ? "late" : "live") : ""}`;
    this.element.classList.toggle("off", isDown);
    parts.placeholder.textContent = this.drawn || isDown ? "" : "Waiting for the first frame …";
    const usual = this.frame?.knobs === "original" ? "Frames travel as the camera makes them." : "";
    parts.why.textContent = sentence(wrong || texts.reason || texts.assumed || usual);
    parts.why.classList.toggle("warn", Boolean(wrong));
    parts.why.title = parts.why.textContent;
  }

  /** Draws the newest picture; those that come while one is decoded give way to the last of them. */
  async picture(blob) {
    const { frame } = this;
    this.next = { blob, frame };
    if (this.draws) return;
    this.draws = true;
    while (this.next) {
      const { blob, frame } = this.next;
      this.next = null;
      try {
        const image = await createImageBitmap(blob);
        this.draw(image, frame);
        image.close();
      } catch { /* a picture that the browser cannot decode: the next one may be better */ }
    }
    this.draws = false;
  }

  draw(image, frame) {
    const { canvas } = this.parts;
    if (canvas.width !== image.width || canvas.height !== image.height) {
      canvas.width = image.width;
      canvas.height = image.height;
    }
    const pen = canvas.getContext("2d");
    pen.drawImage(image, 0, 0);
    const found = $("boxes").checked ? state.newest.of(this.name) : [];
    const near = (one) => Math.abs(millis(one.captured_at) - millis(frame.captured_at)) <= BOX_AGE_MAX;
    const fitting = found.filter(near);
    for (const detection of fitting) drawBoxes(pen, detection, image);
    const what = fitting.length ? `, ${summary(fitting.flatMap((one) => one.boxes))}` : "";
    if (!this.drawn) {
      this.drawn = true;
      this.say();
    }
    this.label(`${this.name}, live${what}. Show the original of this frame`);
  }

  label(text) {
    if (this.labelled === text) return;
    this.labelled = text;
    this.parts.canvas.setAttribute("aria-label", text);
  }
}

function drawBoxes(pen, detection, image) {
  const size = detection.size ?? image;
  const [x, y] = [image.width / size.width, image.height / size.height];
  const thick = Math.max(2, Math.round(image.width / 320));
  const high = Math.max(11, Math.round(image.width / 42));
  pen.lineWidth = thick;
  pen.font = `600 ${high}px system-ui, sans-serif`;
  pen.textBaseline = "top";
  for (const [left, top, right, bottom, score, label] of detection.boxes) {
    const colour = colourOf(label);
    pen.strokeStyle = pen.fillStyle = colour;
    pen.strokeRect(left * x, top * y, (right - left) * x, (bottom - top) * y);
    // Scores are on the model's own scale: not all end at 1, and some are distances.
    const text = `${label} ${score.toFixed(score < 10 ? 2 : 1)}`.trim();
    const above = top * y - high - 6;
    const at = above >= 0 ? above : top * y;
    pen.fillRect(left * x - thick / 2, at, pen.measureText(text).width + 8, high + 6);
    pen.fillStyle = "#10181d";
    pen.fillText(text, left * x + 4 - thick / 2, at + 3);
  }
}

function colourOf(label) {
  let sum = 0;
  for (const letter of label) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return COLOURS[sum % COLOURS.length];
}

$("bounds").addEventListener("change", () => {
  if (!$("bounds").reportValidity()) return;
  for (const tile of state.tiles.values()) tile.update();
});
$("bounds").addEventListener("submit", (event) => event.preventDefault());

document.addEventListener("visibilitychange", () => {
  for (const tile of state.tiles.values()) tile.inView(tile.isInView);
  if (!document.hidden) list();
});

// --- The original of a frame

async function showOriginal(camera, at, frame) {
  const dialog = $("original");
  $("original-title").textContent = camera;
  $("original-note").textContent = "";
  $("original-picture").replaceChildren("Fetching the original …");
  if (!dialog.open) dialog.showModal();
  const path = `/cameras/${encodeURIComponent(camera)}/snapshot.jpg${at ? `?at=${at}` : ""}`;
  try {
    const picture = async (answer) => [answer.headers.get("tidegate-captured-at"), await answer.blob()];
    const [captured, blob] = await call(path, picture, { longest: SLOW_ANSWER_MAX });
    const image = new Image();
    image.alt = `The original frame of ${camera}`;
    image.src = URL.createObjectURL(blob);
    await image.decode();
    $("original-picture").replaceChildren(image);
    const save = document.createElement("a");
    save.href = image.src;
    save.download = `${camera}-${captured}.jpg`;
    save.textContent = "Save";
    const sent = frame?.bytes && frame.bytes < blob.size ? `, sent live as ${frame.size.join(" × ")} with ${bytes(frame.bytes)}` : "";
    const note = `Captured ${clock(captured, true)} · original ${image.naturalWidth} × ${image.naturalHeight}, ${bytes(blob.size)}${sent} · `;
    $("original-note").replaceChildren(note, save);
    dialog.addEventListener("close", () => URL.revokeObjectURL(image.src), { once: true });
  } catch (error) {
    const text = error instanceof Away ? "The node does not answer." : sentence(error.message ?? "The picture cannot be shown");
    $("original-picture").replaceChildren(text);
    if (error instanceof Away) away();
  }
}
$("original-close").addEventListener("click", () => $("original").close());
$("original").addEventListener("click", (event) => event.target === $("original") && $("original").close());

// --- Detections

const detections = {
  socket: null,
  wait: 1000,
  close() {
    clearTimeout(this.again);
    const { socket } = this;
    this.socket = null;
    socket?.close();
  },
};

function watchDetections() {
  if (detections.socket || !state.me) return;
  const mine = socket("/v1/detections");
  detections.socket = mine;
  mine.onopen = () => (detections.wait = 1000);
  mine.onmessage = ({ data }) => {
    if (typeof data === "string") detected(exact(data));
  };
  mine.onclose = ({ reason }) => {
    if (mine !== detections.socket) return;
    detections.socket = null;
    if (reason) $("no-detections-why").textContent = sentence(reason);
    if (!state.me) return;
    detections.again = setTimeout(watchDetections, detections.wait);
    detections.wait = Math.min(detections.wait * 2, 30000);
  };
}

function detected(told) {
  const detection = readDetection(told);
  if (!detection) return;
  state.newest.set(detection);
  if (!detection.boxes.length) return;
  state.detections.unshift(detection);
  state.detections.length = Math.min(state.detections.length, DETECTIONS_MAX);
  if ($("view-detections").hidden) state.unseen += 1;
  countUnseen();
  if (!listed) listed = requestAnimationFrame(showDetections);
}
let listed = 0;

function countUnseen() {
  $("detection-count").hidden = !state.unseen;
  $("detection-count").textContent = state.unseen > 99 ? "99+" : state.unseen;
}

function showDetections() {
  listed = 0;
  $("no-detections").hidden = state.detections.length > 0;
  const rows = state.detections.map((detection) => {
    const row = element("li", "card");
    const time = element("time", "", clock(detection.captured_at));
    time.dateTime = new Date(millis(detection.captured_at)).toISOString();
    const { took } = detection;
    const late = detection.isLate ? " late" : "";
    const show = element("button", "quiet", "Original");
    show.type = "button";
    show.setAttribute("aria-label", `Original of ${detection.camera} at ${clock(detection.captured_at)}`);
    show.addEventListener("click", () => showOriginal(detection.camera, detection.captured_at));
    row.append(
      time,
      element("span", "", `${detection.camera} · ${detection.detector}`),
      element("span", "found", summary(detection.boxes)),
      element("span", "took", took === null ? "" : `${Math.round(took)} ms${late}`),
      show,
    );
    return row;
  });
  const focused = [...$("detection-list").children].findIndex((row) => row.contains(document.activeElement));
  $("detection-list").replaceChildren(...rows);
  if (focused >= 0) rows[Math.min(focused, rows.length - 1)]?.querySelector("button").focus();
}

/** Such as `2 person, 1 car`. */
function summary(boxes) {
  const counts = new Map();
  for (const box of boxes) counts.set(box[5] || "object", (counts.get(box[5] || "object") ?? 0) + 1);
  return [...counts].map(([label, count]) => `${count} ${label}`).join(", ");
}

// --- Tables

/** Columns: the name, the value, and whether that is a number. */
const number = (name, of) => [name, of, true];
const TABLES = [
  { path: "sinks", title: "Sinks", none: "This node writes to no database or file.", columns: [
    ["Name", (row) => row.name], ["State", (row) => (row.up ? badge("good", "up") : badge("bad", "fails"))], ["Kind", (row) => row.kind],
    ["Topics", (row) => row.topics.join(", ")], number("Messages", (row) => count(row.messages)), number("Bytes", (row) => bytes(row.bytes)),
    number("Refused", (row) => count(row.refused)), number("Failures", (row) => count(row.failures)),
  ] },
  { path: "uplinks", title: "Uplinks", none: "This node sends its messages to no other node.", columns: [
    ["Name", (row) => row.name], ["State", (row) => (row.up ? badge("good", "up") : badge("bad", "down"))], ["To", (row) => row.to],
    number("Messages", (row) => count(row.messages)), number("Bytes", (row) => bytes(row.message_bytes)), number("Sent", (row) => bytes(row.bytes)),
    number("Critical", (row) => count(row.critical)), number("Waiting", (row) => bytes(row.held_bytes)), number("Refused", (row) => count(row.refused)),
  ] },
  { path: "flows", title: "Flows", none: "No flow works on messages here.", columns: [
    ["Name", (row) => row.name], ["State", (row) => (row.bad ? badge("bad", "some unread") : badge("good", "runs"))],
    number("Messages", (row) => count(row.messages)), number("Passed", (row) => count(row.passed)), number("Dropped", (row) => count(row.dropped)),
    number("Published", (row) => count(row.emitted)), number("Unread", (row) => count(row.bad)), number("Keys", (row) => count(row.keys)),
  ] },
  { path: "clients", title: "Clients", none: "No MQTT client has a session.", columns: [
    ["Client", (row) => row.client_id], ["State", (row) => badge(row.connected ? "good" : row.ends_in_s === undefined ? "" : "bad", sessionState(row))],
    ["User", (row) => row.user || row.kind], number("Filters", (row) => count(row.subscriptions)), number("Waiting", (row) => count(row.queued)),
    number("Bytes", (row) => bytes(row.queued_bytes)), number("In flight", (row) => count(row.inflight)),
  ] },
];

let reading = false;
async function tables() {
  if (reading || !state.me?.admin) return;
  reading = true;
  try {
    for (const table of TABLES) {
      let rows, why;
      try {
        rows = (await get(`/v1/${table.path}`))[table.path];
      } catch (error) {
        if (error instanceof Away || error.status === 401) throw error;
        [rows, why] = [[], sentence(error.message)];
      }
      showTable(table, rows, why);
    }
    $("tables-note").textContent = `${state.me.node} runs version ${state.me.version}`;
  } catch (error) {
    await failed(error);
  } finally {
    reading = false;
  }
}

function showTable({ path, title, none, columns }, rows, why, place = $("tables")) {
  let card = $(`table-${path}`);
  if (!card) {
    card = element("section", "table card");
    card.id = `table-${path}`;
    card.append(element("h2", "", title), element("div", "scroll"));
    card.setAttribute("aria-label", title);
    place.append(card);
  }
  const scroll = card.lastElementChild;
  if (!rows.length) {
    scroll.removeAttribute("tabindex");
    scroll.replaceChildren(element("p", "none", why || none));
    return;
  }
  // A table that scrolls is reached by the keyboard.
  scroll.tabIndex = 0;
  const table = element("table");
  const head = table.createTHead().insertRow();
  for (const [name, , isNumber] of columns) {
    const cell = element("th", isNumber ? "number" : "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const [, of, isNumber] of columns) {
      const cell = line.insertCell();
      if (isNumber) cell.className = "number";
      cell.append(of(row));
      cell.title = cell.textContent;
    }
  }
  scroll.replaceChildren(table);
}

// --- Nodes

const STANDINGS = { here: "good", doubted: "warn", lost: "bad", left: "", forgotten: "" };
const MEMBERS = { path: "members", title: "Members", none: "No node is known yet.", columns: [
  ["Name", (row) => row.name], ["Standing", (row) => badge(STANDINGS[row.standing] ?? "", row.standing)], ["Link", linkOf],
  ["Cameras", (row) => row.cameras.join(", ") || "–"], number("Filters", (row) => count(row.filters)), ["Zone", (row) => row.zone || "–"],
  ["Cell", (row) => row.cell ?? "–"], ["API", (row) => row.api_addresses[0] ?? "–"], ["Why", (row) => sentence(row.reason)],
] };

const known = { reading: false, at: null, words: "" };
async function nodes() {
  if (known.reading || !state.me?.admin) return;
  known.reading = true;
  try {
    const [fabric, { members }] = [await get("/v1/fabric"), await get(`/v1/fabric/members?limit=${NODES_MAX}`)];
    members.sort((one, other) => other.me - one.me || one.name.localeCompare(other.name));
    showTable(MEMBERS, members, "", $("members"));
    $("problems").replaceChildren(...fabric.problems.map((text) => element("li", "", sentence(text))));
    $("problems").hidden = !fabric.problems.length;
    $("fabric").hidden = false;
    // Its place has a width once it is shown.
    $("map").hidden = !members.some((member) => member.position);
    const map = drawMap(fabric.cells, members, Math.max(200, $("map-picture").clientWidth));
    $("map-picture").replaceChildren(...(map ? [map] : []));
    const more = members.length < NODES_MAX ? "" : ` · the first ${count(NODES_MAX)} are shown`;
    known.words = `${inWords(fabric)} · ${fabric.replicas} replicas · view ${fabric.view_hash}${more}`;
    $("no-fabric").hidden = true;
    known.at = performance.now();
  } catch (error) {
    if (error.code === "fabric.off") {
      $("fabric").hidden = true;
      $("no-fabric").hidden = false;
      $("no-fabric-why").textContent = sentence(error.message);
      Object.assign(known, { at: performance.now(), words: "" });
    } else await failed(error);
  } finally {
    known.reading = false;
    sayNodesAge(performance.now());
  }
}

/** The figures, or how old they are once the node is silent. */
function sayNodesAge(now) {
  if (known.at === null) return;
  const age = now - known.at;
  const isOld = age > NODES_OLD;
  const text = isOld ? `As it was ${Math.round(age / 1000)} s ago: no news from this node` : known.words;
  if ($("nodes-note").textContent !== text) $("nodes-note").textContent = text;
  $("view-nodes").classList.toggle("old", isOld);
}

const badge = (kind, text) => element("span", `badge ${kind}`, text);

// --- Words and numbers

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

/** A value, and something smaller behind it. */
function put(cell, value, more) {
  const text = more ? `${value} ${more}` : value;
  if (cell.textContent === text) return;
  cell.replaceChildren(value, ...(more ? [" ", element("small", "", more)] : []));
}

const millis = (nanos) => Number(BigInt(nanos) / 1000000n);
const count = (number) => Number(number).toLocaleString("en");

function bytes(number) {
  number = Number(number);
  if (number < 1000) return `${number} B`;
  for (const unit of ["kB", "MB", "GB"]) {
    number /= 1000;
    if (number < 1000) return `${number.toFixed(number < 10 ? 1 : 0)} ${unit}`;
  }
  return `${(number / 1000).toFixed(1)} TB`;
}

function clock(nanos, withDate) {
  const at = new Date(millis(nanos));
  const [hour, minute, second] = ["2-digit", "2-digit", "2-digit"];
  const time = at.toLocaleTimeString("en-GB", { hour, minute, second, ...(withDate && { fractionalSecondDigits: 3 }) });
  return withDate ? `${at.toLocaleDateString("en-CA")} ${time}` : time;
}

/** The node's sentences begin small and end without a full stop. */
function sentence(text) {
  if (!text) return "";
  const begun = text[0].toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}

// --- The beginning

try {
  const me = await whoAmI();
  if (me) begin(me);
  else {
    route();
    $("user").focus();
  }
} catch (error) {
  await failed(error);
}
