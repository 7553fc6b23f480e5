//! What the sandboxes of a tenant may use together.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::policy::size;
use crate::{Budget, ByteSize, NetLimits, Tenant};

/// The limits of all tenants, as whoever runs an engine sets them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantLimits {
    /// For each tenant.
    pub each: Share,
    /// For some of them; what is left out here is as for each.
    pub tenants: BTreeMap<Tenant, Share>,
}

/// The share of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Share {
    /// Of the network.
    pub network: NetShare,
    /// Of what the gateway does.
    pub gateway: GatewayShare,
}

/// How much all sandboxes of a tenant may have the gateway do in a day that begins at midnight UTC, beside what each of them, and each
/// token, may. What is left out is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayShare {
    /// Calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens of language models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Money; written in dollars.
    #[serde(with = "dollars", skip_serializing_if = "Option::is_none", rename = "dollars")]
    pub micro_dollars: Option<u64>,
}

impl GatewayShare {
    /// The same as a budget.
    pub fn budget(&self) -> Budget {
        let Self { requests, tokens, micro_dollars } = *self;
        Budget { requests, tokens, micro_dollars }
    }
}

/// Millionths of a dollar, written in dollars.
mod dollars {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(micro: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(micro.unwrap_or(0) as f64 / 1e6)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        let dollars = f64::deserialize(deserializer)?;
        super::Budget::micro(dollars).map(Some).map_err(D::Error::custom)
    }
}

/// How much of the network all sandboxes of a tenant may use together, beside what each of them may. What is left out is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetShare {
    /// Connections open at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u32>,
    /// New connections, look-ups of names and requests that can be seen, together, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
    /// Bytes in both directions per second.
    #[serde(deserialize_with = "some_size", skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<ByteSize>,
    /// Bytes in both directions, in a day that begins at midnight UTC.
    #[serde(deserialize_with = "some_size", skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<ByteSize>,
}

fn some_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    size(deserializer).map(Some)
}

impl TenantLimits {
    /// What a tenant may use of the network; nothing where it is not limited.
    pub fn network(&self, tenant: &Tenant) -> Option<NetShare> {
        let own = self.tenants.get(tenant).copied().unwrap_or_default().network;
        let each = self.each.network;
        let share = NetShare {
            connections: own.connections.or(each.connections),
            requests_per_second: own.requests_per_second.or(each.requests_per_second),
            bytes_per_second: own.bytes_per_second.or(each.bytes_per_second),
            total_bytes: own.total_bytes.or(each.total_bytes),
        };
        (share != NetShare::default()).then_some(share)
    }

    /// What a tenant may have the gateway do; nothing where that is not limited.
    pub fn gateway(&self, tenant: &Tenant) -> Option<GatewayShare> {
        let own = self.tenants.get(tenant).copied().unwrap_or_default().gateway;
        let each = self.each.gateway;
        let share = GatewayShare {
            requests: own.requests.or(each.requests),
            tokens: own.tokens.or(each.tokens),
            micro_dollars: own.micro_dollars.or(each.micro_dollars),
        };
        (share != GatewayShare::default()).then_some(share)
    }

    /// Names the first that is wrong, and says what would be right.
    pub fn check(&self) -> Result<(), String> {
        let named = self.tenants.iter().map(|(tenant, share)| (tenant.to_string(), share));
        for (whose, share) in [("each".to_owned(), &self.each)].into_iter().chain(named) {
            share
                .network
                .check()
                .map_err(|(field, problem)| format!("`{field}` of `{}`: {problem}", whose.escape_debug()))?;
        }
        self.tenants.keys().try_for_each(Tenant::check).map_err(|error| error.message)
    }
}

impl NetShare {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let given = [
            ("connections", self.connections.map(u64::from), 1..=1_000_000),
            ("requests_per_second", self.requests_per_second.map(u64::from), 1..=100_000_000),
            ("bytes_per_second", self.bytes_per_second.map(|size| size.0), 1024..=1 << 50),
            ("total_bytes", self.total_bytes.map(|size| size.0), 1..=1 << 60),
        ];
        for (field, value, bounds) in given {
            if let Some(value) = value.filter(|value| !bounds.contains(value)) {
                return Err((
                    field,
                    format!("{value} is out of range: {} to {}", bounds.start(), bounds.end()),
                ));
            }
        }
        Ok(())
    }

    /// The same as bounds that all stand, those that are left out where nobody comes.
    pub fn bounds(&self) -> NetLimits {
        NetLimits {
            connections: self.connections.unwrap_or(u32::MAX),
            requests_per_second: self.requests_per_second.unwrap_or(u32::MAX),
            bytes_per_second: self.bytes_per_second.unwrap_or(ByteSize(u64::MAX)),
            total_bytes: self.total_bytes.unwrap_or(ByteSize(u64::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tenant_is_not_given_is_as_for_each() {
        let limits: TenantLimits = serde_json::from_str(
            r#"{"each": {"network": {"connections": 10, "total_bytes": "1g"}},
                "tenants": {"acme": {"network": {"total_bytes": "2g"}}}}"#,
        )
        .unwrap();
        limits.check().unwrap();
        let of = |name: &str| limits.network(&Tenant(name.into())).unwrap();
        let other =
            NetShare { connections: Some(10), total_bytes: Some(ByteSize::gib(1)), ..NetShare::default() };
        assert_eq!(of("other"), other);
        assert_eq!(of("acme"), NetShare { total_bytes: Some(ByteSize::gib(2)), ..other });
        assert_eq!(of("acme").bounds().requests_per_second, u32::MAX);
        assert_eq!(TenantLimits::default().network(&Tenant::default()), None);
        assert_eq!(limits.gateway(&Tenant("acme".into())), None);
        let again = serde_json::to_string(&limits).unwrap();
        assert_eq!(serde_json::from_str::<TenantLimits>(&again).unwrap(), limits);
    }

    #[test]
    fn what_the_gateway_does_is_shared_by_the_day_and_written_in_dollars() {
        let text = r#"{"each": {"gateway": {"tokens": 1000, "dollars": 2.5}}, "tenants": {"acme": {"gateway": {"dollars": 10}}}}"#;
        let limits: TenantLimits = serde_json::from_str(text).unwrap();
        let acme = limits.gateway(&Tenant("acme".into())).unwrap().budget();
        assert_eq!(acme, Budget { requests: None, tokens: Some(1000), micro_dollars: Some(10_000_000) });
        assert_eq!(limits.gateway(&Tenant("b".into())).unwrap().micro_dollars, Some(2_500_000));
        let again = serde_json::to_string(&limits).unwrap();
        assert_eq!(serde_json::from_str::<TenantLimits>(&again).unwrap(), limits);
        assert!(serde_json::from_str::<TenantLimits>(r#"{"each": {"gateway": {"dollars": -1}}}"#).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, says) in [
            (r#"{"each": {"network": {"connections": 0}}}"#, "`connections` of `each`"),
            (
                r#"{"tenants": {"acme": {"network": {"bytes_per_second": 1}}}}"#,
                "`bytes_per_second` of `acme`",
            ),
            (r#"{"tenants": {"a/b": {}}}"#, "`a/b` is not a tenant's name"),
        ] {
            let wrong = serde_json::from_str::<TenantLimits>(text).unwrap().check().unwrap_err();
            assert!(wrong.contains(says), "{wrong}");
        }
        for unknown in [r#"{"all": {}}"#, r#"{"each": {"network": {"conections": 1}}}"#] {
            assert!(serde_json::from_str::<TenantLimits>(unknown).is_err(), "{unknown}");
        }
    }
}
