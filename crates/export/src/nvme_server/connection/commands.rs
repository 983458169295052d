//! A queue's commands, from their capsules to the tasks that serve them.

use std::rc::Rc;

use drive::{Block, BufMut, Env};
use nvme::target::Named;
use nvme::tcp::{To, Violation};
use nvme::{Command, DataPlace, Direction, FABRICS, Fuse, Status, fabrics};

use super::admission::Role;
use super::{End, Receiving};
use crate::limits::NVME_ADMIN_DATA_BYTES_MAX;
use crate::nvme_server::abort::Request;
use crate::nvme_server::asking::{Arriving, Job, Plan};
use crate::nvme_server::authentication;
use crate::nvme_server::fused::{self, Pair, Part, Ready};
use crate::nvme_server::io;

/// The error in a data descriptor for a capsule with `data_bytes` of data, if there is one.
fn outside(offset: u64, len: u32, data_bytes: u32) -> Option<Status> {
    match u64::from(data_bytes).checked_sub(offset) {
        None => Some(Status::SGL_OFFSET_INVALID),
        Some(left) => (u64::from(len) > left).then_some(Status::DATA_SGL_LENGTH_INVALID),
    }
}

impl<B: Block + 'static> Receiving<B> {
    /// A command has arrived, and `data_bytes` of its data follow in its capsule.
    #[inline]
    pub(super) async fn command(&mut self, command: Command, data_bytes: u32) -> Result<(), End> {
        self.commands_since += 1;
        if !self.queue.took() {
            return Err(End::Violation(Violation::QueueFull(self.queue.entries())));
        }
        let mut plan = self.plan(&command);
        let fused = self.fuse(&command, &mut plan);
        let wanted = if command.direction() == Direction::ToController { command.dptr.length.get() } else { 0 };
        let place = command.dptr.place();
        let status = match place {
            _ if wanted == 0 && data_bytes == 0 => None,
            Some(DataPlace::Transport) if data_bytes == 0 => None,
            Some(DataPlace::InCapsule(offset)) if wanted > 0 => outside(offset, wanted, data_bytes),
            None if wanted > 0 => Some(Status::SGL_TYPE_INVALID),
            _ => Some(Status::DATA_SGL_LENGTH_INVALID),
        };
        if let (Some(status), false) = (status, matches!(plan, Plan::Fail(_))) {
            plan = Plan::Fail(status);
        }
        let transport = matches!(place, Some(DataPlace::Transport));
        let will_wait = wanted > 0 && transport && !matches!(plan, Plan::Fail(_));
        if will_wait {
            self.queue.link.hold();
            let job = Job { command, plan, fused, is_paid: false, abort: None };
            match &job.plan {
                // Fused commands wait as a pair, when both have arrived.
                Plan::Io(handle, _) if handle.is_limited() && job.fused.is_none() => {
                    self.asking.over.wait(job, &self.queue);
                }
                _ => self.asking.unasked.push_back(job),
            }
            self.asking.ask(&mut self.machine, &self.queue);
            return Ok(());
        }
        // The first of two fused commands holds memory until the second has arrived. So the second
        // must not wait for memory.
        match &fused {
            Some((_, Part::Second)) => self.queue.link.admit_anyway(plan.held_bytes()),
            _ => self.admitted(plan.held_bytes()).await?,
        }
        if data_bytes == 0 {
            return self.dispatch(Job { command, plan, fused, is_paid: false, abort: None }, None);
        }
        // Bytes in front of the command's data arrive as well. All of them are in the capsule,
        // whose size is bounded.
        let skip = match place {
            Some(DataPlace::InCapsule(offset)) if !matches!(plan, Plan::Fail(_)) => offset as usize,
            _ => 0,
        };
        let len = if matches!(plan, Plan::Fail(_)) { 0 } else { skip + wanted as usize };
        let job = Job { command, plan, fused, is_paid: false, abort: None };
        self.capsule = Some(Arriving { job, data: self.env.alloc(len), skip });
        Ok(())
    }

    /// Decides what to do with a command.
    #[inline]
    fn plan(&self, command: &Command) -> Plan<B> {
        let is_io = matches!(self.role, Role::Io(_));
        // Data is described by SGLs alone, and only commands of I/O queues may be fused.
        if !command.has_sgl() || !is_io && command.fuse() != Fuse::No {
            return Plan::Fail(Status::INVALID_FIELD);
        }
        match &self.role {
            Role::Io(namespaces) if command.opcode != FABRICS => match namespaces.plan(command) {
                Ok((handle, io)) => Plan::Io(handle, io),
                Err(status) => Plan::Fail(status),
            },
            // A second Connect. Properties belong to the admin queue.
            Role::Io(_) if command.fabrics_type() == fabrics::CONNECT => Plan::Fail(Status::COMMAND_SEQUENCE_ERROR),
            Role::Io(_) if !authentication::is_about(command) => Plan::Fail(Status::INVALID_OPCODE),
            Role::Unproven(_) if !authentication::is_about(command) => Plan::Fail(Status::AUTHENTICATION_REQUIRED),
            _ if command.dptr.length.get() <= NVME_ADMIN_DATA_BYTES_MAX => Plan::Control,
            _ if command.direction() == Direction::ToHost => Plan::Control,
            _ => Plan::Fail(Status::INVALID_FIELD),
        }
    }

    /// All data of a command has arrived.
    pub(super) fn received(&mut self, to: To, intact: bool) -> Result<(), End> {
        let arriving = match to {
            To::Capsule => self.capsule.take(),
            To::Transfer(tag) => self.asking.take(tag),
        };
        let Arriving { mut job, data, skip } = arriving.expect("its data were arriving");
        let data = if skip == 0 { data } else { BufMut::copy_of(&data[skip..]) };
        let abort = job.abort.take();
        if abort.is_some() {
            self.give_up(&mut job.plan, Status::ABORT_REQUESTED);
        } else if !intact {
            // "the controller shall abort the command with Transient Transport Error" (TCP
            // Transport 1.0, clause 3.3.1.2).
            self.give_up(&mut job.plan, Status::TRANSIENT_TRANSPORT_ERROR);
        } else if let Plan::Io(handle, _) = &job.plan
            && handle.is_ending()
        {
            // The namespace was stopped while the data arrived, and may be gone: the stop does not
            // wait for this command.
            self.give_up(&mut job.plan, Status::INVALID_NAMESPACE);
        }
        self.dispatch(job, Some(data))?;
        abort.into_iter().for_each(Request::done);
        self.asking.ask(&mut self.machine, &self.queue);
        Ok(())
    }

    /// A command that was admitted with its bytes will be answered without them.
    fn give_up(&self, plan: &mut Plan<B>, status: Status) {
        self.queue.link.shrink(plan.held_bytes());
        *plan = Plan::Fail(status);
    }

    /// Executes a command up to the point where it waits. From there on it is a task of its own.
    #[inline]
    fn dispatch(
        &mut self,
        Job { command, plan, fused, is_paid, abort: _ }: Job<B>,
        data: Option<BufMut>,
    ) -> Result<(), End> {
        if let Some((pair, part)) = fused {
            self.dispatch_fused(&pair, part, Named::of(&command), plan, data);
            return Ok(());
        }
        match plan {
            Plan::Fail(status) => self.queue.fail(Named::of(&command), status, 0),
            Plan::Control => return self.control(&command, data.as_deref().unwrap_or(&[])),
            Plan::Io(handle, io) => {
                handle.accepted(&io);
                self.queue.link.arrived(self.arrived);
                let cid = command.cid.get();
                let waits = handle.is_limited() && !is_paid;
                if !waits && data.is_none() {
                    self.take(handle, cid, io);
                    return Ok(());
                }
                let (queue, alarm) = (self.queue.clone(), self.alarm.clone());
                if waits {
                    self.env.spawn_now(io::serve_limited(queue, handle, cid, io, data, self.arrived, alarm));
                } else {
                    self.env.spawn_now(io::serve(queue, handle, cid, io, data, self.arrived, alarm));
                }
            }
        }
        Ok(())
    }

    /// Pairs fused commands. Each says whether it is fused, and two that belong together have to be
    /// consecutive.
    #[inline]
    fn fuse(&mut self, command: &Command, plan: &mut Plan<B>) -> Option<(Rc<Pair<B>>, Part)> {
        let fuse = command.fuse();
        if fuse == Fuse::No && self.first.is_none() || !matches!(self.role, Role::Io(_)) {
            return None;
        }
        let first = self.first.take();
        match (fuse, first) {
            (Fuse::Second, Some(first)) => return Some((first, Part::Second)),
            (Fuse::Second, None) => *plan = Plan::Fail(Status::ABORTED_MISSING_FUSED),
            (_, Some(first)) => first.miss_second(&self.queue),
            (_, None) => {}
        }
        if fuse == Fuse::First {
            let pair = Pair::new();
            self.first = Some(pair.clone());
            return Some((pair, Part::First));
        }
        None
    }

    /// A fused command has all its data.
    fn dispatch_fused(&self, pair: &Pair<B>, part: Part, named: Named, plan: Plan<B>, data: Option<BufMut>) {
        let request = match (plan, data) {
            (Plan::Io(handle, io), Some(data)) => Ok((handle, io, data)),
            (Plan::Fail(status), _) => Err(status),
            // Both parts have data, and none is an admin command.
            (Plan::Io(..) | Plan::Control, _) => Err(Status::INVALID_FIELD),
        };
        if let Some(both) = pair.arrived(part, Ready { named, request }, &self.queue) {
            for (handle, io, _) in both.iter().filter_map(|ready| ready.request.as_ref().ok()) {
                handle.accepted(io);
            }
            self.env.spawn_now(fused::serve(self.queue.clone(), both, self.arrived, self.alarm.clone()));
        }
    }
}
