//! Rates of ports under all factors.

use super::{scenario::MediumConfig, schedule::Setting, unit::Rate};

/// The rate of each port, and the factors of steps and fades on one port and on all.
#[derive(Debug)]
pub(super) struct Speeds {
    ports: Vec<Speed>,
    factor: f64,
    fade: f64,
}

#[derive(Debug)]
struct Speed {
    rate: Rate,
    factor: f64,
    fade: f64,
}

impl Speeds {
    pub(super) fn new(config: &MediumConfig) -> Self {
        let speed = |rate| Speed { rate, factor: 1.0, fade: 1.0 };
        let ports = config.ports.iter().map(|port| speed(port.rate.unwrap_or(config.rate)));
        Self { ports: ports.collect(), factor: 1.0, fade: 1.0 }
    }

    pub(super) fn set(&mut self, setting: &Setting) {
        let chosen = match setting.port {
            Some(port) => &mut self.ports[port..=port],
            None => &mut self.ports[..],
        };
        if let Some(rate) = setting.rate {
            chosen.iter_mut().for_each(|speed| speed.rate = rate);
        }
        let (factor, fade) = match setting.port {
            Some(port) => {
                let speed = &mut self.ports[port];
                (&mut speed.factor, &mut speed.fade)
            }
            None => (&mut self.factor, &mut self.fade),
        };
        *factor = setting.factor.unwrap_or(*factor);
        *fade = setting.fade.unwrap_or(*fade);
    }

    /// All factors on a port's rate.
    pub(super) fn factor(&self, port: usize) -> f64 {
        let speed = &self.ports[port];
        self.factor * self.fade * speed.factor * speed.fade
    }

    pub(super) fn rate(&self, port: usize) -> Rate {
        self.ports[port].rate.scaled(self.factor(port))
    }
}
