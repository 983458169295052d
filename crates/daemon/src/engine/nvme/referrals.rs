//! Referrals: other discovery services that NVMe hosts are notified of.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use api::{Changed, ErrorCode, Referral};

use crate::engine::Engine;
use crate::http::{Answer, ControlError, ReferralControl};
use async_trait::async_trait;

/// The maximum of referrals. It keeps a discovery log within some 128 KiB.
const REFERRALS_MAX: usize = 128;

fn shown(address: SocketAddr) -> Referral {
    Referral { address: address.to_string() }
}

#[async_trait]
impl ReferralControl for Engine {
    async fn referrals(&self) -> Answer<Vec<Referral>> {
        Ok(self.listeners.referrals().into_iter().map(shown).collect())
    }

    async fn referral_add(&self, address: SocketAddr) -> Answer<Changed<Referral>> {
        let _one = self.changes.lock().await;
        let mut referrals = self.listeners.referrals();
        if referrals.len() >= REFERRALS_MAX {
            let message = format!("hosts are referred to {REFERRALS_MAX} addresses already: remove one first");
            return Err(ControlError::new(ErrorCode::TooLarge, message));
        }
        if !referrals.insert(address) {
            let message = format!("hosts are referred to {address} already");
            return Err(ControlError::new(ErrorCode::Invalid, message));
        }
        self.set_referrals(referrals)?;
        tracing::info!(%address, "hosts are referred there");
        Ok(Changed::done(vec![format!("refer NVMe hosts to {address}")], shown(address)))
    }

    async fn referral_remove(&self, address: SocketAddr) -> Answer<Changed<Referral>> {
        let _one = self.changes.lock().await;
        let mut referrals = self.listeners.referrals();
        if !referrals.remove(&address) {
            let message = format!("hosts are not referred to {address}");
            return Err(ControlError::new(ErrorCode::Invalid, message));
        }
        self.set_referrals(referrals)?;
        tracing::info!(%address, "hosts are referred there no longer");
        Ok(Changed::gone(vec![format!("refer NVMe hosts to {address} no longer")]))
    }
}

impl Engine {
    /// Saves the referrals before hosts are notified, so that a restart does not lose them.
    fn set_referrals(&self, referrals: BTreeSet<SocketAddr>) -> Answer<()> {
        self.memory.save_referrals(&referrals).map_err(|error| {
            ControlError::new(ErrorCode::Io, format!("the state directory cannot be written: {error}"))
        })?;
        self.listeners.refer(referrals);
        Ok(())
    }
}
