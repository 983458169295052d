//! From drives to a running group: making one, finding out what drives are, loading it.

pub(crate) mod assemble;
pub(crate) mod create;
pub(crate) mod load;
pub(crate) mod probe;
