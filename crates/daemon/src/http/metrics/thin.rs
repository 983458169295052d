//! Metrics of pools of thin volumes.

use api::Group;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{GroupLabels, family, gauge_value};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ThinLabels {
    group: String,
    part: &'static str,
}

/// Adds them. A group without a pool has none.
pub(super) fn metrics(registry: &mut Registry, groups: &[Group]) {
    let used: Family<ThinLabels, Gauge> =
        family(registry, "thin_pool", "Bytes of a pool of thin volumes by their use", Some(Unit::Bytes));
    let limit: Family<GroupLabels, Gauge> =
        family(registry, "thin_pool_limit", "Most bytes that thin volumes may use of their pool", Some(Unit::Bytes));
    let written: Family<ThinLabels, Counter> =
        family(registry, "thin_pool_written", "Bytes that a pool of thin volumes has written", Some(Unit::Bytes));
    let text = "Bytes that a pool of thin volumes has packed again, before and after, and put in order";
    let anew: Family<ThinLabels, Counter> = family(registry, "thin_pool_stored_anew", text, Some(Unit::Bytes));
    for (group, pool) in groups.iter().filter_map(|group| Some((&group.name, group.thin.as_ref()?))) {
        let of = |part| ThinLabels { group: group.clone(), part };
        let parts = [
            ("data", pool.data_bytes),
            ("maps", pool.metadata_bytes),
            ("garbage", pool.garbage_bytes),
            ("free", pool.free_bytes),
            ("reserved", pool.reserved_bytes),
        ];
        for (part, bytes) in parts {
            used.get_or_create(&of(part)).set(gauge_value(bytes));
        }
        limit.get_or_create(&GroupLabels { group: group.clone() }).set(gauge_value(pool.limit_bytes));
        let work = pool.work;
        for (part, bytes) in
            [("data", work.data_bytes), ("collected", work.collected_bytes), ("maps", work.metadata_bytes)]
        {
            written.get_or_create(&of(part)).inc_by(bytes);
        }
        let steps = [
            ("before", work.repacked_from_bytes),
            ("after", work.repacked_to_bytes),
            ("ordered", work.reordered_bytes),
        ];
        for (part, bytes) in steps {
            anew.get_or_create(&of(part)).inc_by(bytes);
        }
    }
}
