// A fabric as a node tells of it, for the page: five nodes in two towns and a van between them.

const member = (digit, name, standing, position, more = {}) => ({
  id: digit.repeat(64), name, standing, me: false, linked: standing === "here", addresses: [`${name}.example:7443`],
  api_addresses: [`${name}.example:7080`], position, mobile: false, zone: "", weight: 100, cameras: [], number: 1, start: "00ff", version: 7,
  filters: 3, round_trip_ms: standing === "here" ? 0.7 : null, cell: "12", reason: null, ...more,
});

export const MEMBERS = [
  member("1", "edge", "here", [52.3731, 4.8922], { me: true, linked: false, round_trip_ms: null, cameras: ["door", "street"], cell: "120", zone: "ams" }),
  member("2", "yard", "here", [52.3402, 4.8511], { cameras: ["gate"], cell: "120", round_trip_ms: 1.24, zone: "ams" }),
  member("3", "harbour", "doubted", [52.4127, 4.8003], { cell: "121", reason: "its link ended 12 s ago", zone: "ams" }),
  member("4", "mill", "here", [52.0907, 5.1214], { cameras: ["mill-1", "mill-2", "mill-3"], cell: "122", round_trip_ms: 14.6, zone: "utr" }),
  member("5", "depot", "lost", [52.1102, 5.1809], { cell: "122", reason: "two members miss it since 90 s", zone: "utr" }),
  member("6", "van", "here", [52.2215, 5.0102], { mobile: true, cell: null, round_trip_ms: 48 }),
];

const area = (south, west, north, east) => ({ south_west: [south, west], north_east: [north, east] });
export const FABRIC = {
  me: MEMBERS[0].id, name: "edge", view_hash: "9f3c21d07ab4e511", algorithm: 1, replicas: 3, members: 5, linked: 3, doubted: 1, lost: 1,
  problems: ["member depot is lost, and what it held is at 2 of 3 owners"],
  cells: [
    { name: "120", members: 2, ...area(52.2, 4.83, 90, 180) },
    { name: "121", members: 1, ...area(52.2, -180, 90, 4.83) },
    { name: "122", members: 2, ...area(-90, -180, 52.2, 180) },
  ],
};

/** Has a page see that fabric, whatever its node has. */
export async function showFabric(page) {
  await page.route("**/v1/fabric", (route) => route.fulfill({ json: FABRIC }));
  await page.route("**/v1/fabric/members?*", (route) => route.fulfill({ json: { members: MEMBERS } }));
}
