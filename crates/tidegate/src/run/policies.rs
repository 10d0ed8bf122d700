//! The policies by which subscribers are sent messages, with the numbers that `[mqtt]` gives them.

use tidegate_api::ApiError;
use tidegate_config::{ByteCount, MqttSection, words};
use tidegate_message::{Code, check_topic_name};
use tidegate_schedule::{
    DeadlineConfig, PaperConfig, Policy, PolicyConfig, SizeProfile, Threshold,
};

use super::invalid;

/// That policy with the numbers of this node.
pub(super) fn tuned(policies: &PolicyConfig, policy: words::Policy) -> Policy {
    policies.policy(policy.word()).expect("each policy has its word")
}

/// The numbers of the policies, used or not.
pub(super) fn policies(section: &MqttSection) -> Result<PolicyConfig, ApiError> {
    check_topic_name(&section.policy_query_topic, section.topic_levels_max as usize)
        .map_err(|error| invalid("mqtt.policy_query_topic", &error))?;
    let threshold_l = match section.policy_threshold_samples {
        0 => Threshold::Fixed(section.policy_threshold_l),
        samples => Threshold::MovingAverage { samples: samples as usize },
    };
    let policies = PolicyConfig {
        deadline: DeadlineConfig {
            small_budget: section.policy_small_budget,
            deadline: section.policy_deadline,
            large_share: section.policy_large_share,
            ..DeadlineConfig::default()
        },
        paper: PaperConfig {
            threshold_l,
            query_period: section.policy_query_period,
            withhold_max: section.policy_withhold_max,
            query_bytes: section.policy_query_bytes.0,
            profile: size_profile(&section.policy_size_profile).ok_or_else(|| {
                let text = "mqtt.policy_size_profile must be linear, or sizes that grow with factors above 0, such as \
                            10kB:1, 1MB:10";
                ApiError::new(Code::CONFIG_INVALID, text)
            })?,
            lambda: section.policy_lambda,
        },
    };
    policies.check().map_err(|error| invalid("a number of the policies in [mqtt]", &error))?;
    Ok(policies)
}

/// `linear`, or points such as `10kB:1, 1MB:10`.
fn size_profile(text: &str) -> Option<SizeProfile> {
    if text.trim() == "linear" {
        return Some(SizeProfile::Linear);
    }
    let point = |text: &str| {
        let (bytes, factor) = text.split_once(':')?;
        let bytes: ByteCount = bytes.trim().parse().ok()?;
        let factor: f64 = factor.trim().parse().ok()?;
        (factor > 0.0 && factor.is_finite()).then_some((bytes.0, factor))
    };
    let points = text.split(',').map(point).collect::<Option<Vec<_>>>()?;
    points.is_sorted_by(|before, after| before.0 < after.0).then_some(SizeProfile::Points(points))
}
