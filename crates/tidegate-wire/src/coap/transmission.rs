//! When a confirmable message is sent again, and how long identifiers live (RFC 7252 section 4.8).

use std::time::Duration;

use sha2::{Digest, Sha256};
use tidegate_message::Instant;

/// Transmission parameters; both ends should have the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transmission {
    /// The least time to wait for an acknowledgement before a message is sent again (ACK_TIMEOUT, 2 s). More for links with a long
    /// round trip.
    pub ack_timeout: Duration,
    /// The first wait is up to this many times as long, at random (ACK_RANDOM_FACTOR, 1.5; 1.0 or more).
    pub ack_random_factor: f64,
    /// How often a message is sent again, each time after twice the wait (MAX_RETRANSMIT, 4; at most 10).
    pub max_retransmit: u32,
    /// The longest that a datagram takes (MAX_LATENCY, 100 s).
    pub max_latency: Duration,
}

impl Default for Transmission {
    fn default() -> Self {
        Self {
            ack_timeout: Duration::from_secs(2),
            ack_random_factor: 1.5,
            max_retransmit: 4,
            max_latency: Duration::from_secs(100),
        }
    }
}

impl Transmission {
    /// These parameters, if they make sense.
    ///
    /// # Errors
    ///
    /// The [`TransmissionError`] of the first one that does not.
    pub fn checked(self) -> Result<Self, TransmissionError> {
        let hour = Duration::from_secs(3600);
        if self.ack_timeout < Duration::from_millis(10) || self.ack_timeout > hour {
            return Err(TransmissionError::AckTimeout { found: self.ack_timeout });
        }
        if !(1.0..=10.0).contains(&self.ack_random_factor) {
            return Err(TransmissionError::RandomFactor { found: self.ack_random_factor });
        }
        if self.max_retransmit > 10 {
            return Err(TransmissionError::Retransmit { found: self.max_retransmit });
        }
        if self.max_latency > hour {
            return Err(TransmissionError::Latency { found: self.max_latency });
        }
        Ok(self)
    }

    /// From the first time that a message is sent to the last (MAX_TRANSMIT_SPAN, 45 s).
    pub fn transmit_span(&self) -> Duration {
        self.first_waits((1 << self.max_retransmit) - 1)
    }

    /// From the first time that a message is sent until its sender gives up (MAX_TRANSMIT_WAIT, 93 s).
    pub fn transmit_wait(&self) -> Duration {
        self.first_waits((2 << self.max_retransmit) - 1)
    }

    /// How long copies of a confirmable message may arrive (EXCHANGE_LIFETIME, 247 s).
    pub fn exchange_lifetime(&self) -> Duration {
        self.transmit_span() + 2 * self.max_latency + self.ack_timeout
    }

    /// How long copies of a non-confirmable message may arrive (NON_LIFETIME, 145 s).
    pub fn non_lifetime(&self) -> Duration {
        self.transmit_span() + self.max_latency
    }

    fn first_waits(&self, count: u32) -> Duration {
        self.ack_timeout.mul_f64(self.ack_random_factor) * count
    }
}

/// Why transmission parameters make no sense.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum TransmissionError {
    /// The wait for an acknowledgement.
    #[error("ack_timeout is {found:?}; 10 ms to 1 h are possible")]
    AckTimeout {
        /// The value given.
        found: Duration,
    },
    /// How much the first wait varies.
    #[error("ack_random_factor is {found}; 1.0 to 10.0 are possible")]
    RandomFactor {
        /// The value given.
        found: f64,
    },
    /// How often a message is sent again.
    #[error("max_retransmit is {found}; 10 is the most")]
    Retransmit {
        /// The value given.
        found: u32,
    },
    /// How long a datagram may take.
    #[error("max_latency is {found:?}; 1 h is the most")]
    Latency {
        /// The value given.
        found: Duration,
    },
}

/// One confirmable message's waits (section 4.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    pub(super) sent_at: Instant,
    pub(super) retransmissions: u32,
    pub(super) due: Instant,
    wait: Duration,
}

impl Backoff {
    /// The message is sent now for the first time.
    pub(super) fn begin(now: Instant, transmission: &Transmission, random: &mut Random) -> Self {
        let share = f64::from(random.next_u16()) / f64::from(u16::MAX);
        let factor = 1.0 + (transmission.ack_random_factor - 1.0) * share;
        let wait = transmission.ack_timeout.mul_f64(factor);
        Self { sent_at: now, retransmissions: 0, due: now + wait, wait }
    }

    /// The wait is over: whether the message is sent again, and then waited for twice as long.
    pub(super) fn expire(&mut self, now: Instant, transmission: &Transmission) -> bool {
        if self.retransmissions >= transmission.max_retransmit {
            return false;
        }
        self.retransmissions += 1;
        self.wait *= 2;
        self.due = now + self.wait;
        true
    }
}

/// Numbers that cannot be foreseen without the seed.
pub(super) struct Random {
    seed: [u8; 32],
    count: u64,
    block: [u8; 32],
    left: usize,
}

impl Random {
    /// From random bytes, which are used once.
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Self { seed, count: 0, block: [0; 32], left: 0 }
    }

    pub(super) fn next_u16(&mut self) -> u16 {
        if self.left < 2 {
            self.count += 1;
            let digest =
                Sha256::new().chain_update(self.seed).chain_update(self.count.to_be_bytes());
            self.block = digest.finalize().into();
            self.left = self.block.len();
        }
        self.left -= 2;
        u16::from_be_bytes([self.block[self.left], self.block[self.left + 1]])
    }
}

/// Says nothing of the seed.
impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_times_are_those_of_section_4_8_2() {
        let transmission = Transmission::default();
        for (found, seconds) in [
            (transmission.transmit_span(), 45),
            (transmission.transmit_wait(), 93),
            (transmission.exchange_lifetime(), 247),
            (transmission.non_lifetime(), 145),
        ] {
            assert_eq!(found, Duration::from_secs(seconds));
        }
    }

    #[test]
    fn waits_double_and_end() {
        let transmission = Transmission::default();
        let mut random = Random::new([1; 32]);
        for _ in 0..100 {
            let mut backoff = Backoff::begin(Instant::EPOCH, &transmission, &mut random);
            let first = backoff.due.since(Instant::EPOCH);
            assert!((2.0..=3.0).contains(&first.as_secs_f64()), "{first:?}");
            let mut sent = vec![Instant::EPOCH];
            while backoff.expire(backoff.due, &transmission) {
                sent.push(backoff.due);
            }
            assert_eq!(sent.len(), 5, "the first time and four more");
            assert_eq!(backoff.due.since(Instant::EPOCH), 31 * first);
            assert!(backoff.due.since(Instant::EPOCH) <= transmission.transmit_wait());
        }
    }

    #[test]
    fn parameters_that_make_no_sense_are_refused() {
        let transmission = Transmission::default();
        assert_eq!(transmission.checked(), Ok(transmission));
        for (wrong, expected) in [
            (
                Transmission { ack_timeout: Duration::ZERO, ..transmission },
                "ack_timeout is 0ns; 10 ms to 1 h are possible",
            ),
            (
                Transmission { ack_random_factor: f64::NAN, ..transmission },
                "ack_random_factor is NaN; 1.0 to 10.0 are possible",
            ),
            (
                Transmission { max_retransmit: 11, ..transmission },
                "max_retransmit is 11; 10 is the most",
            ),
            (
                Transmission { max_latency: Duration::MAX, ..transmission },
                "max_latency is 18446744073709551615.999999999s; 1 h is the most",
            ),
        ] {
            assert_eq!(wrong.checked().unwrap_err().to_string(), expected);
        }
    }
}
