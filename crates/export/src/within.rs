//! Waiting, but not for ever.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use drive::Env;

/// Runs `future` for at most `duration`. `None` if that was too short.
pub(crate) async fn within<E: Env, T>(env: &E, duration: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep = pin!(env.sleep(duration));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}
