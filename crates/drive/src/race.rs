//! Waiting for the first of two futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::env::Tasks;

/// The output of `first`, or `None` if `second` was ready before it. The other future is dropped.
pub async fn race<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => second.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Runs `future` for at most `duration`. `None` if it took longer.
pub async fn within<T>(tasks: &impl Tasks, duration: Duration, future: impl Future<Output = T>) -> Option<T> {
    race(future, tasks.sleep(duration)).await
}
