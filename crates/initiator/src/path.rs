//! A path to a namespace: an address, and its current controller.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use drive::race;
use nvme::Access;
use nvme::host::{AccessStates, HostError, NamespaceInfo, Survey, access_log, access_log_bytes, admin};
use nvme::target::Event;

use crate::change_notifications::ChangeNotifications;
use crate::controller::{Controller, DAMAGED, Purpose};
use crate::identity::Identity;
use crate::network::{Address, Network};
use crate::termination::Termination;
use crate::{ConnectError, Lost, Options};

/// The log of changed namespaces: Base 2.0, clause 5.16.1.5.
const CHANGED_NAMESPACES: u8 = 0x04;
const CHANGED_NAMESPACES_BYTES: u32 = 4096;

/// Delay before the access state is read again after a command was refused because of it.
const REFRESH_DELAY: Duration = Duration::from_millis(200);

/// State of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// Connected. The access state says whether commands may be sent.
    Live(Access),
    /// Being connected, or connected again.
    Connecting,
    /// It could not be connected for longer than [`Options::loss_timeout`].
    Lost,
}

impl PathState {
    /// Whether commands may be sent.
    pub fn is_usable(self) -> bool {
        matches!(self, PathState::Live(access) if access.is_usable())
    }

    /// The state as a word: an ANA state, `connecting` or `lost`.
    pub fn name(self) -> &'static str {
        match self {
            PathState::Live(Access::Optimized) => "optimized",
            PathState::Live(Access::NonOptimized) => "non-optimized",
            PathState::Live(Access::Inaccessible) => "inaccessible",
            PathState::Live(Access::PersistentLoss) => "persistent-loss",
            PathState::Live(Access::Change) => "change",
            PathState::Connecting => "connecting",
            PathState::Lost => "lost",
        }
    }
}

/// The status of a path, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathStatus {
    /// Its address.
    pub address: Address,
    /// Its state.
    pub state: PathState,
    /// The number of times that it was connected.
    pub connects: u64,
    /// The last error.
    pub last_error: Option<String>,
}

/// The data that all paths of a namespace share.
pub(crate) struct Shared {
    pub options: Options,
    pub nsid: u32,
    pub identity: Identity,
    /// The size in blocks.
    pub blocks: Cell<u64>,
    pub read_only: Cell<bool>,
    /// Most data of one command, in bytes. It is the limit of the first controller.
    pub transfer_bytes_max: u64,
    /// Notifies when a path or the size has changed.
    pub changes: ChangeNotifications,
    /// Ends when the namespace was closed or dropped.
    pub end: Termination,
}

pub(crate) struct Path<N: Network> {
    env: N,
    pub address: Address,
    shared: Rc<Shared>,
    state: RefCell<State<N>>,
}

struct State<N: Network> {
    live: Option<(Controller<N>, Access)>,
    /// Controllers that may still execute commands, including the live one.
    used: Vec<Controller<N>>,
    is_lost: bool,
    connects: u64,
    last_error: Option<String>,
}

/// A controller whose namespace was checked.
pub(crate) struct Checked<N: Network> {
    pub controller: Controller<N>,
    pub info: NamespaceInfo,
    pub access: Access,
}

impl<N: Network> Path<N> {
    pub fn new(env: &N, address: &Address, shared: &Rc<Shared>) -> Rc<Path<N>> {
        let state = State { live: None, used: Vec::new(), is_lost: false, connects: 0, last_error: None };
        let (env, address, shared) = (env.clone(), address.clone(), shared.clone());
        Rc::new(Path { env, address, shared, state: RefCell::new(state) })
    }

    /// The controller, and the access state of the namespace on it.
    pub fn live(&self) -> Option<(Controller<N>, Access)> {
        self.state.borrow().live.clone()
    }

    /// The controllers that may still execute commands.
    pub fn used(&self) -> Vec<Controller<N>> {
        self.state.borrow().used.clone()
    }

    /// Whether it could not be connected within the time limit.
    pub fn is_lost(&self) -> bool {
        self.state.borrow().is_lost
    }

    pub fn status(&self) -> PathStatus {
        let State { live, is_lost, connects, last_error, .. } = &*self.state.borrow();
        let state = match live {
            Some((_, access)) => PathState::Live(*access),
            None if *is_lost => PathState::Lost,
            None => PathState::Connecting,
        };
        PathStatus { address: self.address.clone(), state, connects: *connects, last_error: last_error.clone() }
    }

    /// Keeps the path connected until the namespace ends. `first` is a controller that is already
    /// connected.
    pub async fn run(self: Rc<Self>, first: Option<Checked<N>>) {
        let Shared { options, changes, end, .. } = &*self.shared;
        let mut next = first;
        loop {
            let found = match next.take() {
                Some(found) => found,
                None => {
                    let found = async {
                        let mut connecting = pin!(self.connect_again());
                        let Some(limit) = options.loss_timeout else { return connecting.await };
                        if let Some(found) = race(connecting.as_mut(), self.env.sleep(limit)).await {
                            return found;
                        }
                        self.state.borrow_mut().is_lost = true;
                        tracing::warn!(address = %self.address, "the path is lost");
                        changes.tell();
                        connecting.await
                    };
                    match race(found, end.ended()).await {
                        Some(found) => found,
                        None => return,
                    }
                }
            };
            let controller = found.controller.clone();
            self.take_up(found);
            self.env.spawn(self.clone().listen(controller.clone()));
            let Some(lost) = race(controller.ended(), end.ended()).await else { return };
            {
                let mut state = self.state.borrow_mut();
                state.live = None;
                state.last_error = Some(lost.to_string());
            }
            tracing::warn!(address = %self.address, reason = %lost, "the connection is lost");
            changes.tell();
        }
    }

    fn take_up(&self, found: Checked<N>) {
        self.shared.blocks.set(found.info.blocks);
        self.shared.read_only.set(found.info.read_only);
        let mut state = self.state.borrow_mut();
        state.used.retain(|controller| !controller.is_settled());
        state.used.push(found.controller.clone());
        state.live = Some((found.controller, found.access));
        state.is_lost = false;
        state.connects += 1;
        if state.connects > 1 {
            tracing::info!(address = %self.address, "connected again");
        }
        drop(state);
        self.shared.changes.tell();
    }

    /// Tries to connect until it succeeds.
    async fn connect_again(&self) -> Checked<N> {
        let Options { reconnect_delay, reconnect_delay_max, .. } = self.shared.options;
        let mut delay = reconnect_delay;
        loop {
            match self.connect().await {
                Ok(found) => return found,
                Err(error) => {
                    tracing::debug!(%error, "no connection yet");
                    self.state.borrow_mut().last_error = Some(error.to_string());
                }
            }
            self.env.sleep(delay).await;
            delay = (delay * 2).min(reconnect_delay_max.max(reconnect_delay));
        }
    }

    async fn connect(&self) -> Result<Checked<N>, ConnectError> {
        let controller = Controller::open(&self.env, &self.address, &self.shared.options, Purpose::Io).await?;
        match self.check(&controller).await {
            Ok((info, access)) => Ok(Checked { controller, info, access }),
            Err(error) => {
                controller.shutdown().await;
                Err(error)
            }
        }
    }

    /// Checks that this is the same namespace. Returns its properties and access state.
    async fn check(&self, controller: &Controller<N>) -> Result<(NamespaceInfo, Access), ConnectError> {
        let Shared { nsid, identity, transfer_bytes_max, .. } = &*self.shared;
        let info = look(controller, *nsid).await?;
        let address = || self.address.clone();
        identity.check(&info, &controller.established().info.serial).map_err(|what| ConnectError::Exchanged {
            address: address(),
            nsid: *nsid,
            what,
        })?;
        if controller.transfer_bytes_max() < *transfer_bytes_max {
            let what = "the controller takes less data with a command than the first one".to_owned();
            return Err(ConnectError::Unfit { address: address(), what });
        }
        let access = access(controller, info.access_group).await?;
        Ok((info, access))
    }

    /// Handles events.
    async fn listen(self: Rc<Self>, controller: Controller<N>) {
        while let Ok(event) = controller.next_event().await {
            if event == Event::NamespaceChanged {
                // The event is not reported again before this log was read.
                let log = admin::get_log_page(CHANGED_NAMESPACES, 0, CHANGED_NAMESPACES_BYTES, false);
                if controller.execute_admin(log).await.is_err() {
                    return;
                }
            }
            self.look_again(&controller).await;
        }
    }

    /// Reads the namespace and its access state again. If the namespace is not the same any more,
    /// the controller is given up.
    async fn look_again(&self, controller: &Controller<N>) {
        match self.check(controller).await {
            Ok((info, access)) => {
                self.shared.blocks.set(info.blocks);
                self.shared.read_only.set(info.read_only);
                if let Some((_, state)) = &mut self.state.borrow_mut().live {
                    *state = access;
                }
                self.shared.changes.tell();
            }
            Err(error) => controller.give_up(Lost::Unfit(error.to_string())),
        }
    }

    /// Called when a command was refused because of another access state than the known one.
    pub fn met(self: &Rc<Self>, controller: &Controller<N>, access: Access) {
        if let Some((_, state)) = &mut self.state.borrow_mut().live {
            *state = access;
        }
        let (path, controller) = (self.clone(), controller.clone());
        self.env.spawn(async move {
            path.env.sleep(REFRESH_DELAY).await;
            if controller.lost().is_none() {
                path.look_again(&controller).await;
            }
        });
    }
}

/// Properties of a namespace as a controller reports them.
pub(crate) async fn look<N: Network>(controller: &Controller<N>, nsid: u32) -> Result<NamespaceInfo, ConnectError> {
    let address = || controller.address().clone();
    let found = controller.lead(Survey::of(nsid)).await?.pop();
    match found {
        Some((_, Ok(info))) => Ok(info),
        Some((_, Err(source))) => Err(ConnectError::Refused { address: address(), source }),
        None => Err(ConnectError::NoNamespace { address: address(), nsid }),
    }
}

/// The access state of a namespace's group.
pub(crate) async fn access<N: Network>(controller: &Controller<N>, group: u32) -> Result<Access, ConnectError> {
    if !controller.established().info.has_access_states {
        return Ok(Access::Optimized);
    }
    let refused = |source| ConnectError::Refused { address: controller.address().clone(), source };
    let ended = |reason| ConnectError::Ended { address: controller.address().clone(), reason };
    let mut groups = 8;
    loop {
        let reply = controller.execute_admin(access_log(access_log_bytes(groups))).await.map_err(ended)?;
        let status = reply.completion.status();
        if !status.is_success() {
            return Err(refused(HostError::Failed { command: "Get Log Page", status }));
        }
        if !reply.is_intact {
            return Err(refused(DAMAGED));
        }
        let log = reply.data.expect("the log was asked for");
        match AccessStates::of(&log).map_err(refused)? {
            Ok(states) => return Ok(states.group(group)),
            Err(more) => groups = more,
        }
    }
}
