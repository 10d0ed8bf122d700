//! The flags of a load, for any program that flattens them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, ValueEnum};
use tidegate_message::quantity;
use tidegate_wire::mqtt::{QoS, Version};

use crate::{
    connect::{ConnectError, TlsArgs, password},
    flag::{ArgError, qos, seconds, version},
    spec::{Flow, Pace, Spec, Topology},
    url::BrokerUrl,
};

/// Flags that make a [`Spec`].
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Broker to load: HOST:PORT, or a URL as of pub and sub, such as wss://HOST:PORT/PATH
    #[arg(long, value_name = "HOST:PORT|URL", default_value = "127.0.0.1:1883")]
    pub target: BrokerUrl,
    /// Version of MQTT: 3.1, 3.1.1 or 5
    #[arg(long, value_name = "VERSION", default_value = "3.1.1", value_parser = version)]
    pub mqtt: Version,
    /// N publishers, each to a subscriber of its own
    #[arg(long, value_name = "N", group = "shape")]
    pub pairs: Option<u32>,
    /// N publishers to one topic; subscribers (1, or as --subscribers says) share what they send
    #[arg(long, value_name = "N", group = "shape")]
    pub fan_in: Option<u32>,
    /// One publisher (or as --publishers says) to N subscribers that each get all
    #[arg(long, value_name = "N", group = "shape")]
    pub fan_out: Option<u32>,
    /// Publishers, where the shape leaves it open
    #[arg(long, value_name = "N")]
    pub publishers: Option<u32>,
    /// Subscribers, where the shape leaves it open; 0 with --pairs for none
    #[arg(long, value_name = "N")]
    pub subscribers: Option<u32>,
    /// Bytes of a payload, at least 16
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub payload: u32,
    /// Quality of service of publishers
    #[arg(long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    pub qos: QoS,
    /// Highest quality of service of subscribers
    #[arg(long, value_name = "0|1|2", default_value = "2", value_parser = qos)]
    pub subscribe_qos: QoS,
    /// Messages per second of all publishers together; latency counts from when each was meant to leave
    #[arg(long, value_name = "RATE", conflicts_with = "window")]
    pub rate: Option<f64>,
    /// Without a rate: messages of each publisher on the way to each subscriber
    #[arg(long, value_name = "MESSAGES", default_value_t = 1000)]
    pub window: u32,
    /// Several kinds of messages from each publisher instead, such as `--flow small=100,50ms,0 --flow large=1000000,800ms,1`: a
    /// name, bytes of payload, the period of one publisher, and a QoS
    #[arg(long, value_name = "NAME=BYTES,PERIOD,QOS", value_parser = flow, conflicts_with = "rate")]
    pub flow: Vec<Flow>,
    /// Unacknowledged messages of a publisher with QoS 1 and 2
    #[arg(long, value_name = "MESSAGES", default_value_t = 100)]
    pub inflight: u16,
    /// Seconds of sending before anything is measured
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub warm_up: Duration,
    /// Seconds measured
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub seconds: Duration,
    /// Seconds to wait at the end while nothing more arrives
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub drain: Duration,
    /// Seconds for all connections to be made
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub connect_timeout: Duration,
    /// Further subscribers that never read
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub stalled: u32,
    /// Further connections that only ping
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub idle: u32,
    /// User name of every connection
    #[arg(long, value_name = "NAME")]
    pub username: Option<String>,
    /// File whose first line is the password of every connection [default: $TIDEGATE_PASSWORD, with a user name]
    #[arg(long, value_name = "FILE", requires = "username")]
    pub password_file: Option<PathBuf>,
    /// TLS of every connection
    #[command(flatten)]
    pub tls: TlsArgs,
    /// First level of every topic
    #[arg(long, value_name = "TOPIC", default_value = "load")]
    pub topic: String,
    /// Keep alive in seconds, 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub keep_alive: u16,
    /// Source addresses 127.0.0.2 and up to spread connections over: one has ports for some 28,000
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub sources: u8,
    /// Threads of the generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: u8,
    /// The broker's process on this machine, to report its processor time and memory
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

/// How a report is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table.
    #[default]
    Table,
    /// Comma-separated values with a line of names.
    Csv,
    /// One JSON object.
    Json,
}

impl LoadArgs {
    /// The load that these flags ask for.
    ///
    /// # Errors
    /// Any of [`ConnectError`].
    pub fn spec(&self) -> Result<Spec, ConnectError> {
        let mut tls = self.tls.config()?;
        if let Some(tls) = &mut tls {
            // A connection stands for a device of its own: what another one agreed on does not shorten its handshake.
            tls.resumption = rustls::client::Resumption::disabled();
        }
        self.target.endpoint(None, tls.is_some())?;
        let (topology, publishers, subscribers) = match (self.fan_in, self.fan_out) {
            (Some(publishers), _) => (Topology::FanIn, publishers, self.subscribers.unwrap_or(1)),
            (_, Some(subscribers)) => (Topology::FanOut, self.publishers.unwrap_or(1), subscribers),
            _ => {
                let pairs = self.pairs.or(self.publishers).unwrap_or(1);
                (Topology::Pairs, pairs, self.subscribers.unwrap_or(pairs))
            }
        };
        let one = Flow {
            payload_bytes: self.payload,
            qos: self.qos,
            pace: self.rate.map_or(Pace::Window(self.window), Pace::Rate),
            ..Flow::default()
        };
        let defaults = Spec::default();
        Ok(Spec {
            target: self.target.to_string(),
            subscribe_target: None,
            tls: tls.map(Arc::new),
            version: self.mqtt,
            topology,
            publishers,
            subscribers,
            flows: if self.flow.is_empty() { vec![one] } else { self.flow.clone() },
            subscribe_qos: self.subscribe_qos,
            inflight: self.inflight,
            warm_up: self.warm_up,
            duration: self.seconds,
            drain: self.drain,
            connect_timeout: self.connect_timeout,
            stalled: self.stalled,
            stalled_receive_buffer_bytes: defaults.stalled_receive_buffer_bytes,
            idle: self.idle,
            username: self.username.clone(),
            password: password(self.password_file.as_deref(), self.username.is_some())?,
            topic_prefix: self.topic.clone(),
            client_prefix: defaults.client_prefix,
            keep_alive: self.keep_alive,
            source_addresses: self.sources,
            threads: self.threads,
            process: self.pid,
        })
    }
}

fn flow(text: &str) -> Result<Flow, ArgError> {
    let (name, rest) = text.split_once('=').ok_or(ArgError::Flow)?;
    let [bytes, every, level] = rest.split(',').collect::<Vec<_>>()[..] else {
        return Err(ArgError::Flow);
    };
    if name.is_empty() || name.len() > 256 || name.contains(['/', '+', '#', '\0']) {
        return Err(ArgError::Flow);
    }
    Ok(Flow {
        name: name.to_owned(),
        payload_bytes: bytes.parse().map_err(|_| ArgError::Flow)?,
        qos: qos(level)?,
        pace: Pace::Every(quantity::duration(every).map_err(|_| ArgError::Duration)?),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        load: LoadArgs,
    }

    fn spec(flags: &str) -> Result<Spec, clap::Error> {
        let words = std::iter::once("load").chain(flags.split_whitespace());
        Program::try_parse_from(words)
            .map(|program| program.load.spec().expect("nothing of it is wrong"))
    }

    #[test]
    fn flags_make_shapes() {
        for (flags, topology, publishers, subscribers) in [
            ("", Topology::Pairs, 1, 1),
            ("--pairs 50", Topology::Pairs, 50, 50),
            ("--pairs 3 --subscribers 0", Topology::Pairs, 3, 0),
            ("--fan-in 9", Topology::FanIn, 9, 1),
            ("--fan-in 9 --subscribers 4", Topology::FanIn, 9, 4),
            ("--fan-out 100", Topology::FanOut, 1, 100),
            ("--fan-out 100 --publishers 2", Topology::FanOut, 2, 100),
        ] {
            let spec = spec(flags).unwrap();
            assert_eq!(
                (spec.topology, spec.publishers, spec.subscribers),
                (topology, publishers, subscribers),
                "{flags}"
            );
            assert_eq!(spec.check(), Ok(()), "{flags}");
        }
        assert!(spec("--pairs 1 --fan-in 2").is_err());
    }

    #[test]
    fn flags_make_flows() {
        let mixed = spec("--flow small=100,50ms,0 --flow large=1000000,0.8s,1").unwrap();
        assert_eq!(mixed.flows[0].pace, Pace::Every(Duration::from_millis(50)));
        assert_eq!(mixed.flows[1].pace, Pace::Every(Duration::from_millis(800)));
        assert_eq!(
            (mixed.flows[1].payload_bytes, mixed.flows[1].qos),
            (1_000_000, QoS::AtLeastOnce)
        );
        assert_eq!(spec("--rate 5000").unwrap().flows[0].pace, Pace::Rate(5000.0));
        for bad in ["--flow a", "--flow a=1,2,3", "--flow a/b=100,1s,0", "--qos 3", "--mqtt 6"] {
            assert!(spec(bad).is_err(), "{bad}");
        }
    }
}
