// The nodes of a fabric as a map: their cells as rectangles, themselves as points, by latitude and longitude alone (plate carrée). Nothing of
// the map comes from elsewhere, so it has no coasts and no streets.

const SVG = "http://www.w3.org/2000/svg";
/** Degrees that a map shows at the least: about a kilometre, so that a single node is not all of it. */
const SPAN_MIN = 0.01;
/** Free room around the nodes, as a part of their span. */
const MARGIN = 0.12;
/** More names than these would cover each other. */
const NAMES_MAX = 30;
/** Pixels of the map's height at most: the list is below it. */
const HEIGHT_MAX = 420;

/** The degrees that hold all points, round the shorter way: `east` may be beyond 180. None without a point. */
export function bounds(points) {
  if (!points.length) return null;
  const longitudes = points.map(([, longitude]) => longitude).sort((one, other) => one - other);
  // The widest gap between neighbours is what the map leaves out, that over the date line among them.
  let [west, gap] = [longitudes[0], longitudes[0] + 360 - longitudes.at(-1)];
  for (let at = 1; at < longitudes.length; at += 1) {
    const between = longitudes[at] - longitudes[at - 1];
    if (between > gap) [west, gap] = [longitudes[at], between];
  }
  const latitudes = points.map(([latitude]) => latitude);
  const [south, north] = [Math.min(...latitudes), Math.max(...latitudes)];
  return { west, east: west + 360 - gap, south, north };
}

/** Where all of it is on a map that is so many pixels wide; none where no member says where it is. */
export function layout(cells, members, width) {
  const placed = members.filter((member) => member.position);
  const around = bounds(placed.map((member) => member.position));
  if (!around) return null;
  // A degree of longitude is shorter than one of latitude, but for at the equator.
  const narrow = Math.max(0.05, Math.cos((((around.south + around.north) / 2) * Math.PI) / 180));
  const [wide, high] = [(around.east - around.west) * narrow, around.north - around.south];
  const margin = 2 * MARGIN * Math.max(wide, high, SPAN_MIN);
  const height = Math.round(Math.min(HEIGHT_MAX, width * Math.min(0.6, Math.max(0.3, (high + margin) / (wide + margin)))));
  const scale = Math.min(width / (wide + margin), height / (high + margin));
  const middle = [(around.south + around.north) / 2, (around.west + around.east) / 2];
  const x = (longitude) => width / 2 + (longitude - middle[1]) * narrow * scale;
  const y = (latitude) => height / 2 - (latitude - middle[0]) * scale;
  /** The same meridian within half a turn of the middle. */
  const near = (longitude) => middle[1] + ((((longitude - middle[1] + 180) % 360) + 360) % 360) - 180;
  const inside = (value, most) => Math.round(Math.min(most + 9, Math.max(-9, value)) * 10) / 10;
  const outline = ({ south_west: [south, west], north_east: [north, east] }) =>
    [-360, 0, 360, 720].map((turn) => {
      const [left, right] = [inside(x(west + turn), width), inside(x(east + turn), width)];
      const [top, bottom] = [inside(y(north), height), inside(y(south), height)];
      return left < right && top < bottom ? `M${left} ${top}H${right}V${bottom}H${left}Z` : "";
    }).join("");
  return {
    width,
    height,
    cells: cells.map((cell) => ({ ...cell, path: outline(cell) })).filter((cell) => cell.path),
    points: placed.map((member) => ({ member, x: inside(x(near(member.position[1])), width), y: inside(y(member.position[0]), height) })),
    hasNames: placed.length <= NAMES_MAX,
  };
}

/** The map as a picture, for as wide as its place is; none where no member says where it is. */
export function drawMap(cells, members, width) {
  const map = layout(cells, members, width);
  if (!map) return null;
  const picture = made("svg", { viewBox: `0 0 ${map.width} ${map.height}`, height: map.height, role: "img" });
  picture.setAttribute("aria-label", `Map of ${map.points.length} nodes in ${map.cells.length} cells`);
  for (const { name, members, path } of map.cells) picture.append(made("path", { d: path, class: "cell" }, `cell ${name}: ${members} nodes`));
  const me = map.points.find(({ member }) => member.me);
  for (const { member, x, y } of map.points) {
    if (me && member.linked) picture.append(made("line", { x1: me.x, y1: me.y, x2: x, y2: y, class: "link" }));
  }
  for (const { member, x, y } of map.points) {
    const about = `${member.name}, ${member.standing}${member.mobile ? ", moves" : ""}${member.me ? ", this node" : ""}`;
    const kind = ["member", member.standing, member.mobile && "mobile", member.me && "me"].filter(Boolean).join(" ");
    picture.append(made("circle", { cx: x, cy: y, r: member.me ? 7 : 5, class: kind }, about));
    if (!map.hasNames) continue;
    const isRight = x > map.width * 0.75;
    const name = made("text", { x: isRight ? x - 10 : x + 10, y: y + 4, "text-anchor": isRight ? "end" : "start" });
    name.textContent = member.name;
    picture.append(name);
  }
  return picture;
}

function made(name, attributes, title) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (title) element.append(Object.assign(document.createElementNS(SVG, "title"), { textContent: title }));
  return element;
}

/** Such as `7 nodes, 5 of them linked, 1 doubted; 1 lost`. */
export function inWords({ members, linked, doubted, lost }) {
  const first = `${members} ${members === 1 ? "node" : "nodes"}, ${linked} linked`;
  return `${first}${doubted ? `, ${doubted} doubted` : ""}${lost ? `; ${lost} lost` : ""}`;
}

/** What a link to a member is: the node itself, its round trip, that it is there, or none. */
export function linkOf({ me, linked, round_trip_ms: trip }) {
  if (me) return "this node";
  if (!linked) return "–";
  return trip === null ? "up" : `${trip < 10 ? trip.toFixed(1) : Math.round(trip)} ms`;
}
