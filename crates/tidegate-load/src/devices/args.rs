//! The flags of devices, for any program that flattens them.

use std::{num::NonZeroU64, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use tidegate_wire::mqtt::{QoS, Version};

use super::SensorSpec;
use crate::{
    client::Options,
    connect::{ConnectError, TlsArgs, password},
    flag::{qos, seconds, version},
    sensors::{Arrival, Form, Workload},
    url::BrokerUrl,
};

/// Flags that make a [`SensorSpec`].
#[derive(Args, Clone, Debug)]
pub struct SensorArgs {
    /// Broker that the devices are connected to: HOST:PORT, or a URL as of pub and sub, such as wss://HOST:PORT/PATH
    #[arg(long, value_name = "HOST:PORT|URL", default_value = "127.0.0.1:1883")]
    pub target: BrokerUrl,
    /// Version of MQTT: 3.1, 3.1.1 or 5
    #[arg(long, value_name = "VERSION", default_value = "3.1.1", value_parser = version)]
    pub mqtt: Version,
    /// Applications, in equal shares of all messages: city, taxi, grid, fit [default: all four]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub workload: Vec<Workload>,
    /// Devices of each application [default: 10,700 of city, 50,000 of taxi, 10,217,500 of grid, 10,000 of fit]
    #[arg(long, value_name = "N")]
    pub devices: Option<u64>,
    /// Messages a second of all devices together [default: as fast as the broker takes them]
    #[arg(long, value_name = "RATE", conflicts_with = "window")]
    pub rate: Option<f64>,
    /// Seconds of sending
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub seconds: Duration,
    /// Seed of all that is simulated
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// How numbers are written
    #[arg(long, value_enum, default_value_t)]
    pub form: Form,
    /// Which device sends next
    #[arg(long, value_enum, default_value_t)]
    pub arrival: Arrival,
    /// Of so many messages of each application one has a value that its flow in examples/flows notifies of [default: none]
    #[arg(long, value_name = "N")]
    pub odd: Option<NonZeroU64>,
    /// Quality of service
    #[arg(long, value_name = "0|1|2", default_value = "0", value_parser = qos)]
    pub qos: QoS,
    /// Unacknowledged messages of a connection with QoS 1 and 2; before MQTT 5 no broker says how many it takes (Mosquitto: 20)
    #[arg(
        long,
        value_name = "MESSAGES",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub inflight: u16,
    /// Connections that the devices are spread over
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub connections: u16,
    /// Subscribe to the messages that are sent, and compare those that arrive with them: byte for byte, in order of each topic; exit status 1 if
    /// something is lost or altered
    #[arg(long)]
    pub verify: bool,
    /// The same, at another broker, such as that of the node above an uplink; with the same user and certificates
    #[arg(long, value_name = "HOST:PORT|URL")]
    pub to: Option<BrokerUrl>,
    /// With --verify or --to, and without --rate: messages on the way
    #[arg(long, value_name = "MESSAGES", default_value_t = 10_000)]
    pub window: u64,
    /// Seconds to wait at the end while nothing more arrives
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub drain: Duration,
    /// Seconds to wait for each connection, and for each answer
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub connect_timeout: Duration,
    /// User name of every connection
    #[arg(long, value_name = "NAME")]
    pub username: Option<String>,
    /// File whose first line is the password of every connection [default: $TIDEGATE_PASSWORD, with a user name]
    #[arg(long, value_name = "FILE", requires = "username")]
    pub password_file: Option<PathBuf>,
    /// TLS of every connection
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Keep alive in seconds, 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub keep_alive: u16,
}

impl SensorArgs {
    /// The devices that these flags ask for.
    ///
    /// # Errors
    /// Any of [`ConnectError`].
    pub fn spec(&self) -> Result<SensorSpec, ConnectError> {
        let tls = self.tls.config()?.map(Arc::new);
        let password = password(self.password_file.as_deref(), self.username.is_some())?;
        let password = password.map(String::into_bytes);
        let at = |url: &BrokerUrl| {
            let endpoint = url.endpoint(None, tls.is_some())?;
            Ok::<_, ConnectError>(Options {
                host: endpoint.host,
                port: endpoint.port,
                websocket: endpoint.websocket,
                tls: tls.clone(),
                version: self.mqtt,
                keep_alive: self.keep_alive,
                username: self.username.clone(),
                password: password.clone(),
                timeout: self.connect_timeout.max(Duration::from_millis(1)),
                ..Options::default()
            })
        };
        let verify_at = self.to.as_ref().or(self.verify.then_some(&self.target));
        let verified = |url: &BrokerUrl| Ok::<_, ConnectError>((at(url)?, url.to_string()));
        let all = || Workload::ALL.to_vec();
        Ok(SensorSpec {
            broker: at(&self.target)?,
            target: self.target.to_string(),
            verify_at: verify_at.map(verified).transpose()?,
            workloads: if self.workload.is_empty() { all() } else { self.workload.clone() },
            devices: self.devices,
            rate: self.rate,
            window: self.window,
            duration: self.seconds,
            seed: self.seed,
            form: self.form,
            arrival: self.arrival,
            odd: self.odd,
            qos: self.qos,
            inflight: self.inflight,
            connections: self.connections,
            drain: self.drain,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        sensors: SensorArgs,
    }

    fn spec(flags: &str) -> Result<SensorSpec, String> {
        let words = std::iter::once("sensors").chain(flags.split_whitespace());
        let program = Program::try_parse_from(words).map_err(|error| error.to_string())?;
        program.sensors.spec().map_err(|error| error.to_string())
    }

    #[test]
    fn flags_make_devices() {
        let usual = spec("").unwrap();
        assert_eq!((usual.workloads.len(), usual.devices, usual.connections), (4, None, 1));
        assert_eq!(usual.devices_of(Workload::Grid), 10_217_500);
        assert!(usual.verify_at.is_none() && usual.check().is_ok());
        let all = spec("--workload city,FIT --devices 50 --rate 1e5 --form fixed --arrival random --odd 97 --to ws://above").unwrap();
        assert_eq!(all.workloads, [Workload::City, Workload::Fit]);
        assert_eq!((all.devices_of(Workload::Fit), all.rate), (50, Some(1e5)));
        assert_eq!((all.form, all.arrival), (Form::Fixed, Arrival::Random));
        assert_eq!((usual.odd, all.odd), (None, NonZeroU64::new(97)));
        let (above, name) = all.verify_at.unwrap();
        assert_eq!((&*above.host, above.port, &*name), ("above", 8083, "ws://above"));
        assert_eq!(spec("--verify").unwrap().verify_at.unwrap().1, "127.0.0.1:1883");
    }

    #[test]
    fn wrong_flags_are_told_with_the_way_out() {
        for (flags, expected) in [
            ("--workload oil", "there are city, taxi, grid and fit"),
            ("--rate 5 --window 7", "cannot be used with"),
            ("--qos 3", "0, 1 or 2"),
            ("--to mqtts://above", "--cafile FILE"),
            ("--to http://above", "write mqtt://"),
            ("--form csv", "[possible values: natural, fixed]"),
            ("--seconds -1", "unexpected argument"),
            ("--seconds NaN", "a time is a number of seconds"),
            ("--devices many", "invalid digit"),
            ("--odd 0", "zero"),
        ] {
            let error = spec(flags).expect_err(flags);
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }
}
