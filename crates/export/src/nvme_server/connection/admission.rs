//! The role of a queue and the identity of its host: Connect, authentication, admin commands.

use std::sync::Arc;

use drive::Block;
use nvme::auth::TRANSACTION_REQUIRED;
use nvme::target::{Admission, Refused};
use nvme::{Command, FABRICS, Status, fabrics};

use super::{End, Receiving, address_of};
use crate::nvme_server::admin::Admin;
use crate::nvme_server::association::Association;
use crate::nvme_server::authentication::{self, Authentication, Progress};
use crate::nvme_server::io::Namespaces;
use crate::nvme_server::portal::RefusalKind;

/// The role of a queue.
pub(super) enum Role<B> {
    /// No role yet: the queue waits for Connect.
    New,
    /// The queue is connected, and its host has to authenticate first.
    Unproven(Unproven<B>),
    Admin(Box<Admin<B>>),
    Io(Namespaces<B>),
}

/// The role of a queue once its host has authenticated.
pub(super) enum Unproven<B> {
    Admin(Box<Admin<B>>),
    /// An I/O queue. It takes its place in the association only after the authentication, so a
    /// client that knows a host's name but no secret takes none.
    Io(Arc<Association>, u16),
}

impl<B: Block> Role<B> {
    /// The association that the queue belongs to, if it is connected.
    fn association(&self) -> Option<&Association> {
        match self {
            Role::New => None,
            Role::Unproven(unproven) => Some(unproven.association()),
            Role::Admin(admin) => Some(&admin.association),
            Role::Io(namespaces) => Some(namespaces.association()),
        }
    }
}

impl<B> Unproven<B> {
    pub fn association(&self) -> &Association {
        match self {
            Unproven::Admin(admin) => &admin.association,
            Unproven::Io(association, _) => association,
        }
    }
}

impl<B: Block + 'static> Receiving<B> {
    pub(super) fn control(&mut self, command: &Command, data: &[u8]) -> Result<(), End> {
        let cid = command.cid.get();
        match &mut self.role {
            Role::Unproven(_) => return self.authenticate(command, data),
            Role::Admin(_) | Role::Io(_) if authentication::is_about(command) => {
                // Reauthentication, while commands go on, with the host's current secret. Linux
                // does so on all queues, one by one. A transaction that was begun and never ended
                // does not block the host forever.
                if self.authentication.as_ref().is_none_or(|begun| begun.is_over(self.arrived))
                    && let Some(Ok(Some(policy))) = self.role.association().map(Association::policy)
                {
                    self.authentication = Authentication::new(policy, self.arrived).ok();
                }
                match self.authentication {
                    Some(_) => return self.authenticate(command, data),
                    None => self.queue.complete(cid, Status::INVALID_OPCODE, 0, 0),
                }
            }
            Role::Admin(admin) => admin.execute(&self.queue, command, data, self.arrived),
            Role::New if command.opcode == FABRICS && command.fabrics_type() == fabrics::CONNECT => {
                match self.admit(command, data) {
                    Ok(result) => self.queue.complete(cid, Status::SUCCESS, result, 0),
                    Err(refused) => {
                        let who = address_of(&self.peer);
                        if let Some(count) = self.portal.refused(RefusalKind::Connect, who, self.arrived) {
                            tracing::info!(peer = self.peer, why = %refused, count, "an NVMe host was refused");
                        }
                        let Refused(status, result) = refused;
                        self.queue.complete(cid, status, result, 0);
                    }
                }
            }
            _ => self.queue.complete(cid, Status::COMMAND_SEQUENCE_ERROR, 0, 0),
        }
        Ok(())
    }

    /// Connect: gives the queue its role. Returns the result of the command: the controller's
    /// number, and whether the host has to authenticate.
    fn admit(&mut self, command: &Command, data: &[u8]) -> Result<u64, Refused> {
        let admission = Admission::of(command, data)?;
        let connect = admission.connect;
        let unproven = if connect.queue == 0 {
            let association =
                self.portal.admit(&admission, self.identity.as_ref(), self.alarm.clone(), self.arrived)?;
            let admin = Admin::new(&self.env, self.portal.clone(), association, &admission, self.local);
            Unproven::Admin(Box::new(admin))
        } else {
            let association = self.portal.association(&admission, self.identity.as_ref(), self.arrived)?;
            if !association.has_place(connect.queue) {
                return Err(Refused::QUEUE());
            }
            Unproven::Io(association, connect.queue)
        };
        let cntlid = unproven.association().cntlid;
        let required = self.begin(unproven)?;
        self.queue.connected(connect.size + 1, connect.no_flow_control);
        Ok(u64::from(cntlid) | required)
    }

    /// Gives a queue its role, or lets it wait until its host has authenticated. Returns AUTHREQ.
    fn begin(&mut self, unproven: Unproven<B>) -> Result<u64, Refused> {
        let begun = match unproven.association().policy() {
            Ok(None) => {
                self.role = self.proven(unproven).ok_or_else(Refused::QUEUE)?;
                return Ok(0);
            }
            Ok(Some(policy)) => Authentication::new(policy, self.arrived).map_err(|status| Refused(status, 0)),
            Err(refused) => Err(refused),
        };
        match begun {
            Ok(begun) => {
                self.authentication = Some(begun);
                self.role = Role::Unproven(unproven);
                Ok(TRANSACTION_REQUIRED)
            }
            Err(refused) => {
                if let Unproven::Admin(admin) = &unproven {
                    admin.leave();
                }
                Err(refused)
            }
        }
    }

    /// The role of a queue whose host has authenticated. `None` if its place in the association was
    /// taken meanwhile.
    fn proven(&mut self, unproven: Unproven<B>) -> Option<Role<B>> {
        Some(match unproven {
            Unproven::Admin(admin) => Role::Admin(admin),
            Unproven::Io(association, number) => {
                let seat = association.seat(number, self.alarm.clone())?;
                let peer = format!("{} at {}, queue {number}", association.host.nqn, self.peer);
                let env = self.env.clone();
                let namespaces = Namespaces::new(env, self.portal.clone(), association, seat, peer, self.alarm.clone());
                self.reader.expect_promptly();
                self.queue.link.belongs_to(&self.budget, namespaces.association().host.nqn.as_str());
                self.queue.serves(namespaces.association().clone(), number);
                Role::Io(namespaces)
            }
        })
    }

    /// Authentication Send or Receive of a transaction that has begun.
    fn authenticate(&mut self, command: &Command, data: &[u8]) -> Result<(), End> {
        let Some(authentication) = &self.authentication else { return Err(End::Cut) };
        let Some(association) = self.role.association() else { return Err(End::Cut) };
        let (host, is_first) = (association.host.nqn.to_string(), matches!(self.role, Role::Unproven(_)));
        if let Role::Admin(admin) | Role::Unproven(Unproven::Admin(admin)) = &self.role {
            admin.heard(self.arrived);
        }
        let peer = &self.peer;
        match authentication.execute(&self.queue, command, data, self.arrived) {
            Progress::UnderWay => return Ok(()),
            Progress::TooLate => {
                if let Some(count) = self.portal.refused(RefusalKind::Authentication, &host, self.arrived) {
                    tracing::warn!(host, peer, count, "an NVMe host took too long to authenticate: its queue ends");
                }
                return Err(End::Cut);
            }
            Progress::Refused(refusal) => {
                if let Some(count) = self.portal.refused(RefusalKind::Authentication, &host, self.arrived) {
                    tracing::warn!(host, peer, reason = %refusal, count, "an NVMe host did not authenticate: its queue ends");
                }
                return Err(End::Refused(refusal));
            }
            Progress::Proven => tracing::debug!(host, peer, is_first, "an NVMe host has authenticated"),
        }
        self.authentication = None;
        self.role = match std::mem::replace(&mut self.role, Role::New) {
            Role::Unproven(unproven) => self.proven(unproven).ok_or(End::Taken)?,
            // It was a reauthentication.
            role => role,
        };
        Ok(())
    }
}
