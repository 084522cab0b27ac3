//! Named policies as text.

use super::{list, table};
use crate::control::view::{OrDefault, SetPolicy, Setting, TenantPolicyView};

/// The values of a policy, and its users.
fn policy_values(policy: &TenantPolicyView) -> [String; 6] {
    fn text<T: std::fmt::Display>(value: &Option<Setting<T>>) -> String {
        match value {
            Some(Setting::To(value)) => value.to_string(),
            Some(Setting::None) | None => "-".into(),
        }
    }
    let SetPolicy { share, min_bandwidth, max_bandwidth, max_iops, burst, .. } = &policy.spec;
    let burst = match burst {
        Some(OrDefault::To(burst)) => burst.to_string(),
        Some(OrDefault::Default) | None => "-".into(),
    };
    let users: Vec<_> = policy.users.iter().map(|user| format!("{} ({})", user.tenant, user.disk)).collect();
    let users = if users.is_empty() { "-".into() } else { users.join(", ") };
    [text(share), text(min_bandwidth), text(max_bandwidth), text(max_iops), burst, users]
}

/// A table of policies.
pub fn policies(policies: &[TenantPolicyView]) -> String {
    if policies.is_empty() {
        return "no policies: create one with `aerogel policy create NAME --share 1/4`\n".into();
    }
    let headings = ["POLICY", "SHARE", "MIN BANDWIDTH", "MAX BANDWIDTH", "MAX IOPS", "BURST", "USERS"];
    let row = |policy: &TenantPolicyView| [vec![policy.name.clone()], policy_values(policy).to_vec()].concat();
    table(&headings, policies.iter().map(row).collect())
}

/// All properties of a policy.
pub fn tenant_policy(policy: &TenantPolicyView) -> String {
    let [share, min_bandwidth, max_bandwidth, max_iops, burst, users] = policy_values(policy);
    list(&[
        ("policy", policy.name.clone()),
        ("share", share),
        ("min bandwidth", min_bandwidth),
        ("max bandwidth", max_bandwidth),
        ("max IOPS", max_iops),
        ("burst", burst),
        ("users", users),
    ])
}
