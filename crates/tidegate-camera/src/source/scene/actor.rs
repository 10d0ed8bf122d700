//! Moving actors: people who walk and cars that drive, on closed loops.

use std::f32::consts::TAU;

use super::{
    super::SceneSpec,
    canvas::{Area, Canvas, Color, Shape, ellipse, limb, polygon, shade},
    noise::Draws,
    place,
};

/// A person or a car with its way through the loop.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    /// Where its feet or wheels stand, as a share of the height.
    foot: f32,
    way: Way,
    look: Look,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    /// From one side to the other and in again, once a loop. Shares of the height; `from` may be right of `to`.
    Through { from: f32, to: f32, offset: f32 },
    /// To and fro around the middle, once a loop.
    Stroll { middle: f32, reach: f32, offset: f32 },
}

#[derive(Clone, Copy, Debug)]
enum Look {
    Person(Person),
    Car(Car),
}

#[derive(Clone, Copy, Debug)]
struct Person {
    /// Metres.
    tall: f32,
    skin: Color,
    hair: Color,
    top: Color,
    trousers: Color,
    bag: Option<Color>,
    /// Steps of two legs in one loop.
    strides: f32,
}

#[derive(Clone, Copy, Debug)]
struct Car {
    paint: Color,
    van: bool,
}

/// The result of drawing an actor.
pub(super) struct Seen {
    /// Where the canvas may have changed.
    pub(super) changed: Option<Area>,
    /// Where its body is in the picture; `None` if it is outside.
    pub(super) body: Option<Area>,
    /// Pixels of the body inside the picture, those hidden by nearer things included.
    pub(super) pixels_whole: u32,
}

/// Everyone in the scene, the farthest first, so that the nearer are drawn over them.
pub(super) fn cast(spec: &SceneSpec, aspect: f32) -> Vec<Actor> {
    let mut draws = Draws::new(spec.seed, 2);
    let mut actors = Vec::new();
    let people = usize::from(spec.people);
    let near = people * 3 / 8;
    for index in 0..people {
        // Where each starts is spread evenly, so that they seldom hide each other.
        let (group, of) = if index < near { (index, near) } else { (index - near, people - near) };
        let offset = (group as f32 + draws.between(0.2, 0.6)) / of as f32;
        actors.push(person(&mut draws, spec, aspect, index < near, group, of, offset));
    }
    for index in 0..usize::from(spec.cars) {
        let lane_near = index % 2 == 0;
        let offset = (index as f32 + draws.between(0.1, 0.5)) / f32::from(spec.cars);
        let (foot, rightwards) = if lane_near { (0.70, true) } else { (0.605, false) };
        let car = Car { paint: draws.pick(&PAINT), van: draws.chance(0.3) };
        actors.push(Actor {
            foot,
            way: through(aspect, 0.62, rightwards, offset),
            look: Look::Car(car),
        });
    }
    actors.sort_by(|a, b| a.foot.total_cmp(&b.foot));
    actors
}

const SKIN: [Color; 4] =
    [[222.0, 178.0, 150.0], [196.0, 144.0, 112.0], [146.0, 100.0, 74.0], [104.0, 70.0, 54.0]];
const HAIR: [Color; 4] =
    [[44.0, 34.0, 28.0], [92.0, 64.0, 40.0], [150.0, 120.0, 76.0], [96.0, 92.0, 90.0]];
/// Clothes that stand out from the road and the pavement in brightness, so that what moves can be seen without colour.
const TOP: [Color; 8] = [
    [236.0, 150.0, 60.0],
    [36.0, 50.0, 100.0],
    [226.0, 222.0, 212.0],
    [42.0, 46.0, 50.0],
    [228.0, 178.0, 54.0],
    [30.0, 62.0, 46.0],
    [72.0, 30.0, 68.0],
    [150.0, 196.0, 224.0],
];
const TROUSERS: [Color; 4] =
    [[40.0, 48.0, 70.0], [46.0, 44.0, 44.0], [62.0, 50.0, 38.0], [32.0, 50.0, 88.0]];
const PAINT: [Color; 6] = [
    [150.0, 28.0, 32.0],
    [38.0, 70.0, 128.0],
    [224.0, 224.0, 222.0],
    [38.0, 40.0, 44.0],
    [206.0, 168.0, 60.0],
    [70.0, 108.0, 88.0],
];

fn person(
    draws: &mut Draws,
    spec: &SceneSpec,
    aspect: f32,
    near: bool,
    group: usize,
    of: usize,
    offset: f32,
) -> Actor {
    let foot = if near { draws.between(0.925, 0.985) } else { draws.between(0.415, 0.455) };
    let walks_through = near || group % 3 == 2;
    let way = if walks_through {
        through(aspect, 0.12, group.is_multiple_of(2), offset)
    } else {
        let room = aspect / of as f32;
        let reach = (place::metres(foot, 1.3) * f32::from(spec.seconds) / 4.0).min(room * 0.75);
        Way::Stroll { middle: (group as f32 + 0.5) * room, reach, offset: draws.unit() }
    };
    let metres = way.length() / place::metres(foot, 1.0);
    let person = Person {
        tall: draws.between(1.58, 1.86),
        skin: draws.pick(&SKIN),
        hair: draws.pick(&HAIR),
        top: draws.pick(&TOP),
        trousers: draws.pick(&TROUSERS),
        bag: draws.chance(0.4).then(|| draws.pick(&TOP)),
        // Whole strides of about 1.4 m, so that the loop has no seam.
        strides: (metres / 1.4).round().max(1.0),
    };
    Actor { foot, way, look: Look::Person(person) }
}

fn through(aspect: f32, margin: f32, rightwards: bool, offset: f32) -> Way {
    let (left, right) = (-margin, aspect + margin);
    let (from, to) = if rightwards { (left, right) } else { (right, left) };
    Way::Through { from, to, offset }
}

impl Way {
    /// Where it is at `time` of the loop, 0 to 1, and which way it faces.
    fn at(self, time: f32) -> (f32, f32) {
        match self {
            Self::Through { from, to, offset } => {
                (from + (to - from) * (time + offset).fract(), (to - from).signum())
            }
            Self::Stroll { middle, reach, offset } => {
                let turn = (time + offset).fract() * 4.0;
                let (along, facing) =
                    if turn < 2.0 { (turn - 1.0, 1.0) } else { (3.0 - turn, -1.0) };
                (middle + reach * along, facing)
            }
        }
    }

    /// The distance that it covers in one loop.
    fn length(self) -> f32 {
        match self {
            Self::Through { from, to, .. } => (to - from).abs(),
            Self::Stroll { reach, .. } => 4.0 * reach,
        }
    }
}

impl Actor {
    /// Its label in the known boxes.
    pub(super) const fn label(&self) -> &'static str {
        match self.look {
            Look::Person(_) => "person",
            Look::Car(_) => "car",
        }
    }

    /// Draws it as it is at `time`, and writes `number` where it is in front.
    pub(super) fn draw(
        &self,
        canvas: &mut Canvas,
        owners: &mut [u8],
        number: u8,
        time: f32,
    ) -> Seen {
        let unit = canvas.height as f32;
        let (x, facing) = self.way.at(time);
        let metre = place::metres(self.foot, 1.0) * unit;
        let origin = [x * unit, self.foot * unit];
        let mut brush = Brush {
            canvas,
            owners,
            number,
            origin,
            metre,
            facing,
            changed: None,
            body: None,
            pixels: 0,
        };
        match self.look {
            Look::Person(person) => person.draw(&mut brush, time),
            Look::Car(car) => {
                let metres = self.way.length() / place::metres(self.foot, 1.0);
                // Whole turns of the wheels, so that the loop has no seam.
                let turns = (metres / (Car::WHEEL_RADIUS * TAU)).round();
                car.draw(&mut brush, time * turns * TAU);
            }
        }
        Seen { changed: brush.changed, body: brush.body, pixels_whole: brush.pixels }
    }
}

/// Draws parts of a body, in metres from where it stands: forwards and up.
struct Brush<'a> {
    canvas: &'a mut Canvas,
    owners: &'a mut [u8],
    number: u8,
    origin: [f32; 2],
    metre: f32,
    facing: f32,
    changed: Option<Area>,
    body: Option<Area>,
    pixels: u32,
}

impl Brush<'_> {
    fn place(&self, forwards: f32, up: f32) -> [f32; 2] {
        [self.origin[0] + self.facing * forwards * self.metre, self.origin[1] - up * self.metre]
    }

    fn paint<F: Fn(f32, f32) -> f32>(
        &mut self,
        shape: &Shape<F>,
        color: impl Fn(f32, f32) -> Color,
    ) {
        let width = self.canvas.width;
        let (owners, number) = (&mut *self.owners, self.number);
        let (mut body, mut pixels) = (self.body, 0);
        let touched = |index: usize| {
            let (x, y) = (index % width, index / width);
            let pixel = Area { x1: x, y1: y, x2: x + 1, y2: y + 1 };
            body = Some(body.map_or(pixel, |body| body.with(pixel)));
            if owners[index] != number {
                owners[index] = number;
                pixels += 1;
            }
        };
        let changed = self.canvas.paint(shape, 1.0, |x, y, _| color(x, y), touched);
        self.body = body;
        self.pixels += pixels;
        self.change(changed);
    }

    fn fill<F: Fn(f32, f32) -> f32>(&mut self, shape: &Shape<F>, color: Color) {
        self.paint(shape, |_, _| color);
    }

    /// Darkens the ground: no part of the body.
    fn shadow(&mut self, half_length: f32, strength: f32) {
        let [x, y] = self.origin;
        let shape = ellipse(x, y, half_length * self.metre, 0.10 * self.metre);
        let changed = self.canvas.paint(&shape, strength, |_, _, there| shade(there, 0.35), |_| {});
        self.change(changed);
    }

    fn change(&mut self, area: Option<Area>) {
        self.changed = match (self.changed, area) {
            (Some(a), Some(b)) => Some(a.with(b)),
            (a, b) => a.or(b),
        };
    }

    fn limb(&mut self, from: [f32; 2], to: [f32; 2], radius1: f32, radius2: f32, color: Color) {
        let (from, to) = (self.place(from[0], from[1]), self.place(to[0], to[1]));
        let shape = limb(from, to, radius1 * self.metre, radius2 * self.metre);
        let (middle, width) = ((from[0] + to[0]) / 2.0, radius1 * self.metre);
        // Light from the left, as on the houses.
        let light = move |x: f32, _: f32| {
            shade(color, 1.0 - 0.18 * ((x - middle) / width).clamp(-1.0, 1.0))
        };
        self.paint(&shape, light);
    }

    fn dot(&mut self, at: [f32; 2], across: f32, down: f32, color: Color) {
        let [x, y] = self.place(at[0], at[1]);
        self.fill(&ellipse(x, y, across * self.metre, down * self.metre), color);
    }

    /// A convex polygon, its corners clockwise when it faces right.
    fn plate(&mut self, corners: &[[f32; 2]], round: f32, color: impl Fn(f32, f32) -> Color) {
        let mut corners: Vec<_> = corners.iter().map(|&[x, y]| self.place(x, y)).collect();
        if self.facing < 0.0 {
            corners.reverse();
        }
        self.paint(&polygon(corners, round * self.metre), color);
    }
}

impl Person {
    fn draw(self, brush: &mut Brush<'_>, time: f32) {
        let swing = (time * self.strides * TAU).sin();
        let lift = (time * self.strides * TAU).cos();
        let size = self.tall / 1.75;
        let at = |x: f32, y: f32| [x * size, y * size];
        let bob = 0.02 * swing.abs();
        let (hip, shoulder) = (0.90 - bob, 1.43 - bob);
        brush.shadow(0.30, 0.15);
        self.arm(brush, size, shoulder, -swing, 0.78);
        self.leg(brush, size, hip, -swing, -lift, 0.74);
        self.leg(brush, size, hip, swing, lift, 1.0);
        let top = self.top;
        brush.limb(
            at(0.0, hip + 0.03),
            at(0.0, hip + 0.10),
            0.135 * size,
            0.14 * size,
            self.trousers,
        );
        brush.limb(at(0.0, hip + 0.12), at(0.01, shoulder - 0.06), 0.135 * size, 0.165 * size, top);
        brush.limb(
            at(0.01, shoulder),
            at(0.02, shoulder + 0.09),
            0.055 * size,
            0.05 * size,
            self.skin,
        );
        brush.dot(at(0.03, shoulder + 0.205), 0.088 * size, 0.115 * size, self.skin);
        brush.dot(at(0.005, shoulder + 0.245), 0.096 * size, 0.088 * size, self.hair);
        brush.dot(at(0.065, shoulder + 0.195), 0.058 * size, 0.075 * size, self.skin);
        if let Some(color) = self.bag {
            brush.limb(
                at(-0.17, shoulder - 0.10),
                at(-0.18, hip + 0.20),
                0.095 * size,
                0.105 * size,
                color,
            );
        }
        self.arm(brush, size, shoulder, swing, 1.0);
    }

    fn leg(self, brush: &mut Brush<'_>, size: f32, hip: f32, swing: f32, lift: f32, light: f32) {
        let color = shade(self.trousers, light);
        // The leg that comes forward is bent and its foot is off the ground.
        let raised = 0.10 * lift.max(0.0);
        let knee =
            [(0.17 * swing + 0.05 + 0.08 * lift.max(0.0)) * size, (0.49 + raised * 0.5) * size];
        let ankle = [(0.33 * swing - 0.05 * lift.max(0.0)) * size, (0.09 + raised) * size];
        brush.limb([0.0, hip * size], knee, 0.098 * size, 0.075 * size, color);
        brush.limb(knee, ankle, 0.075 * size, 0.05 * size, color);
        let toe = [ankle[0] + 0.15 * size, ankle[1] - 0.05 * size];
        brush.limb(
            [ankle[0] - 0.02 * size, ankle[1] - 0.045 * size],
            toe,
            0.045 * size,
            0.035 * size,
            shade([44.0, 40.0, 38.0], light),
        );
    }

    fn arm(self, brush: &mut Brush<'_>, size: f32, shoulder: f32, swing: f32, light: f32) {
        let elbow = [-0.15 * swing * size, (shoulder - 0.30) * size];
        let hand = [(-0.26 * swing + 0.07) * size, (shoulder - 0.54) * size];
        let color = shade(self.top, light * 0.9);
        brush.limb([0.0, (shoulder - 0.04) * size], elbow, 0.062 * size, 0.052 * size, color);
        brush.limb(elbow, hand, 0.052 * size, 0.04 * size, color);
        brush.dot(hand, 0.046 * size, 0.052 * size, shade(self.skin, light));
    }
}

impl Car {
    /// Metres.
    const WHEEL_RADIUS: f32 = 0.34;

    /// `rolled` is how far the wheels have turned, in radians.
    fn draw(self, brush: &mut Brush<'_>, rolled: f32) {
        brush.shadow(2.25, 0.25);
        let (paint, metre) = (self.paint, brush.metre);
        let ground = brush.origin[1];
        // The upper side of the body mirrors the sky, the lower the road.
        let metal = move |_: f32, y: f32| {
            let up = (ground - y) / metre;
            shade(paint, if up > 0.78 { 1.12 } else { 0.72 + 0.35 * (up / 0.78).clamp(0.0, 1.0) })
        };
        let roof = if self.van { 1.85 } else { 1.42 };
        let cabin: [[f32; 2]; 4] = if self.van {
            [[-2.1, roof], [1.15, roof], [1.75, 0.98], [-2.1, 0.98]]
        } else {
            [[-1.35, roof], [0.45, roof], [1.2, 0.92], [-1.85, 0.92]]
        };
        brush.plate(&cabin, 0.05, metal);
        brush.plate(
            &[[-2.1, 0.95], [1.5, 0.95], [2.12, 0.74], [2.12, 0.34], [-2.15, 0.34]],
            0.06,
            metal,
        );
        let glass = |_: f32, y: f32| {
            shade([70.0, 84.0, 96.0], 0.75 + 0.5 * (((ground - y) / metre) - 0.9).max(0.0))
        };
        if self.van {
            brush.plate(
                &[[0.35, roof - 0.14], [1.02, roof - 0.14], [1.5, 1.06], [0.35, 1.06]],
                0.02,
                glass,
            );
        } else {
            brush.plate(
                &[[-1.2, roof - 0.09], [-0.42, roof - 0.09], [-0.42, 0.96], [-1.6, 0.96]],
                0.02,
                glass,
            );
            brush.plate(
                &[[-0.32, roof - 0.09], [0.38, roof - 0.09], [0.98, 0.96], [-0.32, 0.96]],
                0.02,
                glass,
            );
        }
        let sill = shade(paint, 0.45);
        brush.plate(&[[-1.0, 0.42], [1.0, 0.42], [1.0, 0.34], [-1.0, 0.34]], 0.0, move |_, _| sill);
        for seam in [-0.37, 0.72] {
            brush.plate(
                &[[seam, 0.92], [seam + 0.02, 0.92], [seam + 0.02, 0.42], [seam, 0.42]],
                0.0,
                move |_, _| sill,
            );
        }
        brush.plate(&[[1.88, 0.74], [2.12, 0.72], [2.12, 0.60], [1.94, 0.60]], 0.02, |_, _| {
            [244.0, 240.0, 214.0]
        });
        brush.plate(&[[-2.17, 0.86], [-2.05, 0.86], [-2.05, 0.62], [-2.17, 0.62]], 0.02, |_, _| {
            [176.0, 30.0, 30.0]
        });
        for wheel in [-1.32, 1.34] {
            brush.dot([wheel, 0.31], 0.34, 0.34, [28.0, 28.0, 30.0]);
            brush.dot([wheel, 0.31], 0.20, 0.20, [168.0, 170.0, 172.0]);
            for spoke in 0..5 {
                let turn = rolled + spoke as f32 * TAU / 5.0;
                let tip = [wheel + 0.17 * turn.sin(), 0.31 + 0.17 * turn.cos()];
                brush.limb([wheel, 0.31], tip, 0.025, 0.02, [84.0, 86.0, 88.0]);
            }
        }
    }
}
