//! A run's report on itself.

use std::{fmt, time::Duration};

use tidegate_sim::medium::DirectionStats;

/// How a run went.
#[derive(Clone, Debug)]
pub struct Audit {
    /// How long the emulator ran.
    pub duration: Duration,
    /// Processor time of its thread, the kernel's receive path included.
    pub cpu: Duration,
    /// Whether it had real-time priority.
    pub real_time: bool,
    /// Packets delivered.
    pub delivered: u64,
    /// How late they were against the model.
    pub lateness: Lateness,
    /// Packets that the kernel dropped before the emulator read them.
    pub kernel_dropped: u64,
    /// Packets that the kernel refused to take from the emulator.
    pub refused: u64,
    /// Packets that are not IPv4 or have no receiver.
    pub ignored: u64,
    /// Counters of every direction.
    pub directions: Vec<DirectionStats>,
}

/// Lateness of deliveries: when they happened, less when the model had them due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Median.
    pub p50: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// 99.9th percentile.
    pub p999: Duration,
    /// The latest.
    pub max: Duration,
}

impl Audit {
    /// The 99th percentile of lateness above which a run is invalid.
    pub const LATENESS_P99_MAX: Duration = Duration::from_millis(1);

    /// The flaws that make the run's figures unusable; empty for a valid run.
    pub fn flaws(&self) -> Vec<Flaw> {
        let p99 = self.lateness.p99;
        let late = (p99 > Self::LATENESS_P99_MAX).then_some(Flaw::Late { p99 });
        let packets = self.kernel_dropped;
        let dropped = (packets > 0).then_some(Flaw::KernelDropped { packets });
        let packets = self.refused;
        let refused = (packets > 0).then_some(Flaw::Refused { packets });
        [late, dropped, refused].into_iter().flatten().collect()
    }

    /// Share of one core that the emulator used.
    pub fn cpu_share(&self) -> f64 {
        self.cpu.as_secs_f64() / self.duration.as_secs_f64().max(1e-9)
    }
}

/// Why the figures of a run cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The machine was too busy for the emulator.
    Late {
        /// 99th percentile of lateness.
        p99: Duration,
    },
    /// The kernel dropped packets that no seed knows of.
    KernelDropped {
        /// How many.
        packets: u64,
    },
    /// The kernel did not take packets that the model delivered.
    Refused {
        /// How many.
        packets: u64,
    },
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late { p99 } => write!(
                f,
                "p99 lateness {p99:?} is above {:?}: use --real-time or a quieter machine",
                Audit::LATENESS_P99_MAX
            ),
            Self::KernelDropped { packets } => {
                write!(f, "the kernel dropped {packets} packets before the emulator read them")
            }
            Self::Refused { packets } => {
                write!(f, "the kernel refused {packets} packets: their device was down")
            }
        }
    }
}

/// A table of the directions, then one line about the emulator, then one for each flaw.
impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::control::table(&self.directions))?;
        let Lateness { p50, p99, p999, max } = self.lateness;
        writeln!(
            f,
            "{:.1?}: {} packets delivered, lateness p50 {p50:.0?} p99 {p99:.0?} p99.9 {p999:.0?} \
             max {max:.0?}, {:.1} % of a core, real-time {}, {} ignored",
            self.duration,
            self.delivered,
            100.0 * self.cpu_share(),
            if self.real_time { "on" } else { "off" },
            self.ignored,
        )?;
        for flaw in self.flaws() {
            writeln!(f, "INVALID: {flaw}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_or_lossy_runs_are_flagged() {
        let mut audit = Audit {
            duration: Duration::from_secs(10),
            cpu: Duration::from_secs(1),
            real_time: true,
            delivered: 5,
            lateness: Lateness { p99: Duration::from_micros(1000), ..Lateness::default() },
            kernel_dropped: 0,
            refused: 0,
            ignored: 0,
            directions: Vec::new(),
        };
        assert!(audit.flaws().is_empty());
        assert!((audit.cpu_share() - 0.1).abs() < 1e-9);
        audit.lateness.p99 += Duration::from_nanos(1);
        audit.kernel_dropped = 2;
        assert_eq!(audit.flaws().len(), 2);
        assert!(audit.to_string().contains("INVALID: the kernel dropped 2 packets"));
    }
}
