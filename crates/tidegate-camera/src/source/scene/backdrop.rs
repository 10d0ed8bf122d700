//! The still parts: sky, houses, pavements, road, trees and lamps.

use super::{
    canvas::{Area, Canvas, Color, blend, ellipse, limb, polygon, rectangle, shade},
    noise::{Draws, cell, cloudy, smooth},
    place,
};

/// Paints the street without people.
pub(super) fn paint(width: usize, height: usize, seed: u64) -> Canvas {
    let mut street = Backdrop {
        canvas: Canvas::new(width, height),
        draws: Draws::new(seed, 1),
        seed: (seed ^ (seed >> 32)) as u32,
        unit: height as f32,
        wide: width as f32,
    };
    street.sky();
    street.houses();
    street.ground();
    street.road_marks();
    street.furniture();
    street.canvas.soften();
    street.canvas
}

struct Backdrop {
    canvas: Canvas,
    draws: Draws,
    seed: u32,
    /// The frame's height in pixels: lengths are shares of it.
    unit: f32,
    wide: f32,
}

const BRICK: [Color; 3] = [[142.0, 84.0, 66.0], [158.0, 104.0, 78.0], [124.0, 78.0, 70.0]];
const PLASTER: [Color; 4] =
    [[203.0, 191.0, 163.0], [188.0, 178.0, 170.0], [176.0, 186.0, 180.0], [210.0, 180.0, 148.0]];
const AWNING: [Color; 4] =
    [[150.0, 44.0, 44.0], [40.0, 92.0, 72.0], [44.0, 66.0, 122.0], [188.0, 128.0, 40.0]];
const FRAME: Color = [222.0, 220.0, 212.0];
const GLASS: Color = [62.0, 74.0, 86.0];

impl Backdrop {
    fn rows(&self, from: f32, to: f32) -> Area {
        let pixel = |share: f32| ((share * self.unit).round() as usize).min(self.canvas.height);
        Area { x1: 0, y1: pixel(from), x2: self.canvas.width, y2: pixel(to) }
    }

    fn sky(&mut self) {
        let (unit, seed) = (self.unit, self.seed);
        self.canvas.texture(self.rows(0.0, place::FACADE), |x, y| {
            let (x, y) = (x / unit, y / unit);
            let blue = blend([118.0, 158.0, 204.0], [196.0, 212.0, 226.0], y / 0.22);
            let cloud = (cloudy(x * 3.0, y * 7.0, 5, seed) - 0.45) * 3.0;
            blend(blue, [238.0, 240.0, 243.0], cloud.clamp(0.0, 0.9))
        });
    }

    fn houses(&mut self) {
        let aspect = self.wide / self.unit;
        let (mut left, mut number) = (-0.05, 0u32);
        while left < aspect {
            let house = self.draws.between(0.34, 0.52);
            let top = self.draws.between(0.015, 0.10);
            self.house(left, left + house, top, number);
            left += house;
            number += 1;
        }
    }

    fn house(&mut self, left: f32, right: f32, top: f32, number: u32) {
        let unit = self.unit;
        let seed = self.seed.wrapping_add(number * 101);
        let brick = self.draws.chance(0.55);
        let wall = if brick { self.draws.pick(&BRICK) } else { self.draws.pick(&PLASTER) };
        let shape = rectangle(left * unit, top * unit, right * unit, place::FACADE * unit);
        self.canvas.paint(
            &shape,
            1.0,
            |x, y, _| wall_color(wall, brick, x / unit, y / unit, seed),
            |_| {},
        );
        self.bar([left, right], [top - 0.010, top + 0.006], shade(wall, 0.72));
        self.bar([left, right], [top + 0.006, top + 0.010], shade(wall, 0.45));
        let floor = place::FACADE - 0.135;
        self.bar([left, right], [floor - 0.006, floor + 0.004], shade(wall, 0.82));

        let columns = ((right - left) / 0.095).floor().max(2.0) as usize;
        let stories = ((floor - top - 0.01) / 0.125).round().max(1.0) as usize;
        let (across, down) =
            ((right - left) / columns as f32, (floor - top - 0.02) / stories as f32);
        for story in 0..stories {
            for column in 0..columns {
                let x = left + (column as f32 + 0.5) * across;
                let y = top + 0.02 + (story as f32 + 0.5) * down;
                self.window(x, y, 0.022, (down * 0.34).min(0.042), wall, seed);
            }
        }
        self.shop(left + 0.012, right - 0.012, floor + 0.012, seed);
    }

    fn window(
        &mut self,
        x: f32,
        y: f32,
        half_width: f32,
        half_height: f32,
        wall: Color,
        seed: u32,
    ) {
        let (left, right, top, bottom) =
            (x - half_width, x + half_width, y - half_height, y + half_height);
        let lit = self.draws.chance(0.18);
        let curtain = self.draws.chance(0.5);
        self.bar([left - 0.006, right + 0.006], [top - 0.010, top - 0.003], shade(wall, 1.12));
        self.bar([left - 0.003, right + 0.003], [top - 0.003, bottom + 0.003], FRAME);
        let unit = self.unit;
        let glass = rectangle(left * unit, top * unit, right * unit, bottom * unit);
        self.canvas.paint(
            &glass,
            1.0,
            |px, py, _| {
                let (u, v) = (px / unit - left, (py / unit - top) / (bottom - top));
                let sky = cloudy(px / unit * 14.0, py / unit * 22.0, 3, seed ^ 77);
                let dark = blend(GLASS, [150.0, 170.0, 188.0], (sky - 0.35) * 1.2 * (1.0 - v));
                let room = if lit { blend(dark, [214.0, 180.0, 112.0], 0.55) } else { dark };
                let edge = (u / (2.0 * half_width) - 0.5).abs() * 2.0;
                let folds = 0.86 + 0.14 * (u * 900.0).sin();
                if curtain && edge > 0.55 {
                    shade([196.0, 192.0, 184.0], folds * 0.8)
                } else {
                    room
                }
            },
            |_| {},
        );
        self.bar([x - 0.0016, x + 0.0016], [top, bottom], FRAME);
        self.bar([left, right], [y - 0.0016, y + 0.0016], FRAME);
        self.bar(
            [left - 0.008, right + 0.008],
            [bottom + 0.003, bottom + 0.009],
            [196.0, 192.0, 182.0],
        );
        self.bar(
            [left - 0.008, right + 0.008],
            [bottom + 0.009, bottom + 0.013],
            shade(wall, 0.55),
        );
    }

    /// A shop window with goods, a door, a sign and an awning.
    fn shop(&mut self, left: f32, right: f32, top: f32, seed: u32) {
        let color = self.draws.pick(&AWNING);
        let bottom = place::FACADE;
        self.bar([left, right], [top, bottom], shade(color, 0.62));
        self.sign(left, right, top, color);
        let door = left + (right - left) * self.draws.between(0.12, 0.72);
        let panes = [[left + 0.008, door - 0.006], [door + 0.056, right - 0.008]];
        for [from, to] in panes {
            if to - from > 0.03 {
                self.display(from, to, top + 0.045, bottom - 0.014, seed);
            }
        }
        self.bar([door, door + 0.05], [top + 0.036, bottom], shade(color, 0.8));
        self.bar([door + 0.007, door + 0.043], [top + 0.044, bottom - 0.02], [48.0, 54.0, 60.0]);
        self.bar(
            [door + 0.038, door + 0.041],
            [bottom - 0.055, bottom - 0.035],
            [206.0, 190.0, 130.0],
        );
        // The awning hangs in front of all of it.
        let (unit, stripe) = (self.unit, 0.017);
        let cloth = polygon(
            vec![
                [(left + 0.006) * unit, (top + 0.026) * unit],
                [(right - 0.006) * unit, (top + 0.026) * unit],
                [(right + 0.004) * unit, (top + 0.052) * unit],
                [(left - 0.004) * unit, (top + 0.052) * unit],
            ],
            0.0,
        );
        let striped = |x: f32, y: f32, _| {
            let lean = 1.0 - (y / unit - top - 0.026) / 0.026 * 0.25;
            let odd = ((x / unit - left) / stripe).floor() as i32 % 2 == 0;
            shade(if odd { color } else { [226.0, 220.0, 206.0] }, lean)
        };
        self.canvas.paint(&cloth, 1.0, striped, |_| {});
        self.bar([left - 0.004, right + 0.004], [top + 0.052, top + 0.055], shade(color, 0.4));
    }

    fn sign(&mut self, left: f32, right: f32, top: f32, color: Color) {
        self.bar([left + 0.004, right - 0.004], [top + 0.003, top + 0.023], shade(color, 0.95));
        let mut x = left + 0.03;
        while x < right - 0.04 {
            let letter = self.draws.between(0.006, 0.010);
            if self.draws.chance(0.84) {
                self.letter(x, top + 0.007, letter, 0.012);
            }
            x += letter + 0.004;
        }
    }

    /// Strokes that look like a letter from across the street.
    fn letter(&mut self, x: f32, y: f32, wide: f32, high: f32) {
        let ink = [236.0, 228.0, 200.0];
        self.bar([x, x + 0.0022], [y, y + high], ink);
        for share in [0.0, 0.42, 0.82] {
            if self.draws.chance(0.6) {
                self.bar([x, x + wide], [y + high * share, y + high * share + 0.0022], ink);
            }
        }
        if self.draws.chance(0.5) {
            self.bar([x + wide - 0.0022, x + wide], [y, y + high], ink);
        }
    }

    fn display(&mut self, left: f32, right: f32, top: f32, bottom: f32, seed: u32) {
        self.bar([left - 0.003, right + 0.003], [top - 0.003, bottom + 0.003], [58.0, 52.0, 46.0]);
        let unit = self.unit;
        let glass = rectangle(left * unit, top * unit, right * unit, bottom * unit);
        self.canvas.paint(
            &glass,
            1.0,
            |x, y, _| {
                let glow = smooth(x / unit * 18.0, y / unit * 18.0, seed ^ 5);
                blend([44.0, 42.0, 44.0], [126.0, 112.0, 88.0], glow * 0.7)
            },
            |_| {},
        );
        let mut x = left + 0.004;
        while x < right - 0.016 {
            let wide = self.draws.between(0.006, 0.014);
            let high = self.draws.between(0.010, 0.034);
            let hue = [0, 1, 2].map(|_| self.draws.between(50.0, 215.0));
            self.bar([x, x + wide], [bottom - high, bottom], hue);
            self.bar(
                [x + wide * 0.2, x + wide * 0.8],
                [bottom - high * 0.7, bottom - high * 0.5],
                shade(hue, 0.6),
            );
            x += wide + self.draws.between(0.002, 0.006);
        }
    }

    /// Pavements and road, with perspective: features shrink towards the horizon.
    fn ground(&mut self) {
        let (unit, wide, seed) = (self.unit, self.wide, self.seed);
        self.canvas.texture(self.rows(place::FACADE, 1.0), |x, y| {
            let share = y / unit;
            let metre = place::metres(share, 1.0);
            // Where on the ground this pixel looks, in metres.
            let across = (x - wide / 2.0) / unit / metre;
            let deep = 60.0 / (share - place::HORIZON) / 27.0;
            if !(place::FAR_CURB - 0.004..=place::NEAR_CURB + 0.012).contains(&share) {
                pavement([across, deep], [x, y], metre * unit, seed)
            } else if !(place::FAR_CURB + 0.004..=place::NEAR_CURB - 0.004).contains(&share) {
                let joint = (across - across.floor()) < 0.02;
                let stone = 150.0 + 24.0 * cloudy(across * 6.0, deep * 6.0, 3, seed ^ 9);
                shade([stone, stone, stone * 0.97], if joint { 0.7 } else { 1.0 })
            } else {
                asphalt([across, deep], [x, y], seed)
            }
        });
        self.shadow_under(place::FACADE, 0.018, 0.45);
        self.shadow_under(place::FAR_CURB + 0.004, 0.010, 0.35);
    }

    fn shadow_under(&mut self, from: f32, depth: f32, strength: f32) {
        let unit = self.unit;
        let shape = rectangle(0.0, from * unit, self.wide, (from + depth) * unit);
        let fade = move |_: f32, y: f32, there: Color| {
            let t = ((y / unit - from) / depth).clamp(0.0, 1.0);
            shade(there, 1.0 - strength * (1.0 - t))
        };
        self.canvas.paint(&shape, 1.0, fade, |_| {});
    }

    fn road_marks(&mut self) {
        let (unit, wide, seed) = (self.unit, self.wide, self.seed);
        let worn = move |x: f32, y: f32, there: Color| {
            let wear = cloudy(x / unit * 60.0, y / unit * 60.0, 3, seed ^ 21);
            blend(there, [218.0, 216.0, 206.0], (1.25 - wear).clamp(0.25, 0.92))
        };
        let lean = |x: f32, share: f32, base: f32| {
            let shift = (share - place::HORIZON) / (base - place::HORIZON);
            wide / 2.0 + (x * unit - wide / 2.0) * shift
        };
        let middle = 0.645;
        let mut x = -0.05;
        while x * unit < wide {
            let corners = vec![
                [lean(x, middle, middle), middle * unit],
                [lean(x + 0.12, middle, middle), middle * unit],
                [lean(x + 0.12, middle + 0.009, middle), (middle + 0.009) * unit],
                [lean(x, middle + 0.009, middle), (middle + 0.009) * unit],
            ];
            self.canvas.paint(&polygon(corners, 0.0), 0.9, worn, |_| {});
            x += 0.24;
        }
        // A crossing at the right: bars from curb to curb, along the cars' way.
        let (top, bottom) = (place::FAR_CURB + 0.015, place::NEAR_CURB - 0.02);
        for bar in 0..8 {
            let from = top + (bottom - top) * (bar as f32 / 8.0).powf(1.25);
            let to = from + (bottom - top) * 0.055 * (0.7 + bar as f32 * 0.09);
            let left = self.wide / self.unit * 0.70;
            let corners = [[left, from], [left + 0.17, from], [left + 0.17, to], [left, to]];
            let corners = corners.map(|[x, y]| [lean(x, y, 0.65), y * unit]);
            self.canvas.paint(&polygon(corners.to_vec(), 0.0), 0.85, worn, |_| {});
        }
    }

    fn furniture(&mut self) {
        let aspect = self.wide / self.unit;
        for slot in 0..3 {
            let x = aspect * (0.14 + 0.33 * slot as f32) + self.draws.between(-0.05, 0.05);
            self.tree(x, place::FAR_CURB - 0.012, slot);
        }
        for share in [0.30, 0.64, 0.95] {
            self.lamp(aspect * share, place::FAR_CURB - 0.006);
        }
        let foot = place::NEAR_CURB + 0.02;
        for share in [0.06, 0.52, 0.9] {
            self.bollard(aspect * share, foot);
        }
    }

    fn tree(&mut self, x: f32, foot: f32, number: u32) {
        let unit = self.unit;
        let seed = self.seed ^ (0xabc0 + number);
        let shadow = ellipse(x * unit, (foot + 0.004) * unit, 0.10 * unit, 0.014 * unit);
        self.canvas.paint(&shadow, 0.35, |_, _, there| shade(there, 0.4), |_| {});
        let bark = move |px: f32, py: f32, _| {
            let groove = smooth(px / unit * 420.0, py / unit * 60.0, seed);
            shade([104.0, 84.0, 64.0], 0.55 + 0.6 * groove)
        };
        let crown = foot - 0.215;
        let trunk =
            limb([x * unit, foot * unit], [x * unit, crown * unit], 0.011 * unit, 0.007 * unit);
        self.canvas.paint(&trunk, 1.0, bark, |_| {});
        for side in [-1.0, 1.0] {
            let tip = [(x + side * 0.035) * unit, (crown - 0.02) * unit];
            let branch = limb([x * unit, (crown + 0.05) * unit], tip, 0.005 * unit, 0.003 * unit);
            self.canvas.paint(&branch, 1.0, bark, |_| {});
        }
        // Leaves: a ragged crown of clumps, light from the upper left.
        let (cx, cy, radius) = (x, crown - 0.02, 0.085);
        let shape = ellipse(cx * unit, cy * unit, radius * 1.25 * unit, radius * 1.15 * unit);
        let leaves = move |px: f32, py: f32, there: Color| {
            let (u, v) = (px / unit - cx, py / unit - cy);
            let ragged = cloudy(u * 34.0 + 50.0, v * 34.0 + 50.0, 3, seed ^ 3);
            if u.hypot(v * 1.1) / radius > 0.62 + 0.75 * ragged {
                return there;
            }
            let leaf = cell((px / (unit * 0.0032)) as i32, (py / (unit * 0.0028)) as i32, seed ^ 4);
            let clump = cloudy(u * 60.0 + 9.0, v * 60.0 + 9.0, 2, seed ^ 8);
            let light = 0.45 + 0.5 * clump + 0.42 * (leaf - 0.5) - 2.2 * (u + v);
            if clump < 0.24 { there } else { shade([78.0, 108.0, 48.0], light.clamp(0.3, 1.7)) }
        };
        self.canvas.paint(&shape, 1.0, leaves, |_| {});
    }

    fn lamp(&mut self, x: f32, foot: f32) {
        let unit = self.unit;
        let iron = [58.0, 62.0, 64.0];
        let top = foot - 0.27;
        let pole =
            limb([x * unit, foot * unit], [x * unit, top * unit], 0.0042 * unit, 0.0026 * unit);
        self.canvas.fill(&pole, iron);
        let arm = limb(
            [x * unit, top * unit],
            [(x + 0.035) * unit, (top - 0.006) * unit],
            0.0022 * unit,
            0.0022 * unit,
        );
        self.canvas.fill(&arm, iron);
        let head = ellipse((x + 0.042) * unit, (top - 0.003) * unit, 0.014 * unit, 0.005 * unit);
        self.canvas.fill(&head, [206.0, 206.0, 196.0]);
        self.canvas
            .fill(&ellipse(x * unit, foot * unit, 0.009 * unit, 0.004 * unit), shade(iron, 0.8));
    }

    fn bollard(&mut self, x: f32, foot: f32) {
        let unit = self.unit;
        let post = limb(
            [x * unit, foot * unit],
            [x * unit, (foot - 0.07) * unit],
            0.010 * unit,
            0.009 * unit,
        );
        let round = move |px: f32, _: f32, _: Color| {
            let side = ((px / unit - x) / 0.010).clamp(-1.0, 1.0);
            shade([72.0, 76.0, 80.0], 1.15 - 0.5 * side)
        };
        self.canvas.paint(&post, 1.0, round, |_| {});
        let band = rectangle(
            (x - 0.0095) * unit,
            (foot - 0.062) * unit,
            (x + 0.0095) * unit,
            (foot - 0.054) * unit,
        );
        self.canvas.fill(&band, [210.0, 206.0, 190.0]);
    }

    fn bar(&mut self, [left, right]: [f32; 2], [top, bottom]: [f32; 2], color: Color) {
        let unit = self.unit;
        self.canvas.fill(&rectangle(left * unit, top * unit, right * unit, bottom * unit), color);
    }
}

fn wall_color(wall: Color, brick: bool, x: f32, y: f32, seed: u32) -> Color {
    let stain = 0.88 + 0.24 * cloudy(x * 9.0, y * 9.0, 4, seed);
    if !brick {
        let rough = 0.97 + 0.06 * smooth(x * 700.0, y * 700.0, seed ^ 2);
        return shade(wall, stain * rough);
    }
    let (row, course) = ((y / 0.0062).floor(), (y / 0.0062).fract());
    let offset = if row as i32 % 2 == 0 { 0.0 } else { 0.5 };
    let (column, along) = ((x / 0.0175 + offset).floor(), (x / 0.0175 + offset).fract());
    if course < 0.16 || along < 0.06 {
        return shade([176.0, 166.0, 152.0], stain * 0.92);
    }
    let own = 0.87 + 0.26 * cell(column as i32, row as i32, seed);
    let rough = 0.96 + 0.08 * smooth(x * 500.0, y * 500.0, seed ^ 2);
    shade(wall, own * stain * rough)
}

/// Slabs of 60 by 40 cm with joints, each of its own shade.
fn pavement([across, deep]: [f32; 2], at: [f32; 2], metre: f32, seed: u32) -> Color {
    let row = (deep / 0.22).floor();
    let shift = if row as i32 % 2 == 0 { 0.0 } else { 0.3 };
    let slab = (across + shift) / 0.6;
    let (column, along) = (slab.floor(), slab.rem_euclid(1.0));
    let into = (deep / 0.22).fract();
    let own = 0.90 + 0.18 * cell(column as i32, row as i32, seed ^ 31);
    let dirt = 0.90 + 0.20 * cloudy(across * 1.3, deep * 4.0, 4, seed ^ 32);
    let grit = grit(at, seed ^ 33);
    let joint = 1.2 / metre; // a bit over a pixel
    let groove = if along < joint / 0.6 || into < 0.05 { 0.72 } else { 1.0 };
    shade([170.0, 165.0, 156.0], own * dirt * groove * (0.96 + 0.08 * grit))
}

fn asphalt([across, deep]: [f32; 2], at: [f32; 2], seed: u32) -> Color {
    let patch = 0.84 + 0.32 * cloudy(across * 0.5, deep * 2.0, 4, seed ^ 41);
    let grit = grit(at, seed ^ 42);
    let crack = (cloudy(across * 1.1 + 7.0, deep * 4.0, 4, seed ^ 43) - 0.5).abs() < 0.004;
    let gray = 96.0 * patch * (0.91 + 0.18 * grit) * if crack { 0.6 } else { 1.0 };
    [gray, gray * 1.01, gray * 1.03]
}

/// Stones a pixel or two wide, whatever the distance: the detail of rough ground that a sensor resolves. In pixels.
fn grit([x, y]: [f32; 2], seed: u32) -> f32 {
    0.5 * smooth(x / 1.8, y / 1.6, seed) + 0.5 * smooth(x / 4.5, y / 3.5, seed ^ 1)
}
