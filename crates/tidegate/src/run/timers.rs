//! Timers as `[timer.NAME]` describes them.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use tidegate_api::ApiError;
use tidegate_config::{Config, problems::Problems};
use tidegate_identity::access::Access;
use tidegate_message::{Code, error_chain};
use tidegate_timers::{TimerSettings, Timers};
use tokio::runtime::Handle;

use super::{
    findings::Findings,
    keys::qos_of,
    part::{Changes, Exchange, Part, Ports, Running, Started},
};

/// The part that has the timers.
pub(super) struct Ticking;

#[async_trait]
impl Part for Ticking {
    fn name(&self) -> &'static str {
        "timers"
    }

    fn check(&self, config: &Config, _access: &Access, found: &mut Findings) {
        if config.mqtt.enabled {
            found.problems.take(planned(config));
        }
    }

    async fn start(&self, config: &Config, ports: &mut Ports) -> Result<Started, ApiError> {
        let Some(bus) = &ports.bus else { return Ok(None) };
        let timers = RunningTimers(Mutex::new(Timers::new(bus.clone(), Handle::current())));
        timers.plan(config)?(&mut Changes::default())?;
        Ok(Some(Box::new(timers)))
    }
}

struct RunningTimers(Mutex<Timers>);

#[async_trait]
impl Running for RunningTimers {
    fn plan<'a>(&'a self, new: &'a Config) -> Result<Exchange<'a>, ApiError> {
        let planned = planned(new)?;
        Ok(Box::new(move |changes| {
            let mut timers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            for name in timers.exchange(planned) {
                tracing::info!(timer = name, "timer started, stopped or restarted");
                changes.note("timer", &name);
            }
            Ok(())
        }))
    }

    /// They end when dropped.
    async fn stop(self: Box<Self>) {}
}

/// The timers that `config` describes.
///
/// # Errors
/// [`Code::CONFIG_INVALID`], naming the section and the key.
fn planned(config: &Config) -> Result<Vec<TimerSettings>, ApiError> {
    let levels_max = config.mqtt.topic_levels_max as usize;
    let mut problems = Problems::default();
    let timers = problems.take_all(config.timers.iter().map(|(name, section)| {
        let settings = TimerSettings {
            name: name.clone(),
            topic: section.topic.clone(),
            payload: section.payload.as_deref().map(<[u8]>::to_vec).unwrap_or_default(),
            every: section.every,
            qos: qos_of(section.qos),
            retain: section.retain,
        };
        settings.check(levels_max).map_err(|error| {
            let text = format!("timer.{name} cannot be");
            ApiError::new(Code::CONFIG_INVALID, text).caused_by(error_chain(&error))
        })?;
        Ok(settings)
    }));
    problems.into_result()?;
    Ok(timers)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn of(text: &str) -> Result<Vec<TimerSettings>, ApiError> {
        planned(&Config::parse(Path::new("site.toml"), text).expect("its keys are known"))
    }

    #[test]
    fn section_is_a_timer_and_a_mistake_is_named_with_it() {
        assert_eq!(of("").expect("none is right"), []);
        let text = "[timer.lamp]\ntopic = \"lamp/get\"\npayload = '{\"state\":\"\"}'\nevery = \"5s\"\nqos = 1\nretain = true\n";
        let timers = of(text).expect("it is right");
        let [lamp] = &timers[..] else { panic!("{timers:?}") };
        assert_eq!((&*lamp.topic, &*lamp.payload), ("lamp/get", &br#"{"state":""}"#[..]));
        assert_eq!((lamp.every.as_secs(), lamp.qos, lamp.retain), (5, qos_of(1), true));
        let error = of("[timer.all]\ntopic = \"lamp/#\"\n").expect_err("it has a wildcard");
        assert!(error.chain().contains("timer.all cannot be"), "{}", error.chain());
    }
}
