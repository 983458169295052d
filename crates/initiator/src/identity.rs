//! Checks that a namespace is still the same: NVMe Base 2.0, clause 4.5.1.

use nvme::host::NamespaceInfo;

/// The properties that identify a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    serial: String,
    first: NamespaceInfo,
}

impl Identity {
    /// The identity of a namespace on first use, with the serial number of its controller.
    pub fn new(info: &NamespaceInfo, serial: &str) -> Identity {
        Identity { serial: serial.to_owned(), first: info.clone() }
    }

    /// Compares with a namespace that was found later, or on another path. The error names the
    /// difference.
    ///
    /// # Errors
    /// It is another namespace, or has another block size.
    pub fn check(&self, found: &NamespaceInfo, serial: &str) -> Result<(), String> {
        let first = &self.first;
        let differs = |what: &str, was: &[u8], is: Option<&[u8]>| {
            let is = is.map_or_else(|| "none".to_owned(), hex);
            format!("its {what} was {}, and is {is}", hex(was))
        };
        if let Some(was) = first.uuid.filter(|was| found.uuid != Some(*was)) {
            return Err(differs("UUID", &was, found.uuid.as_ref().map(|id| &id[..])));
        }
        if let Some(was) = first.nguid.filter(|was| found.nguid != Some(*was)) {
            return Err(differs("NGUID", &was, found.nguid.as_ref().map(|id| &id[..])));
        }
        if let Some(was) = first.eui64.filter(|was| found.eui64 != Some(*was)) {
            return Err(differs("EUI-64", &was, found.eui64.as_ref().map(|id| &id[..])));
        }
        if first.block_bytes != found.block_bytes {
            return Err(format!("its blocks had {} bytes, and have {}", first.block_bytes, found.block_bytes));
        }
        let is_named = first.uuid.is_some() || first.nguid.is_some() || first.eui64.is_some();
        if is_named {
            return Ok(());
        }
        // Without identifiers, only size and serial number can be compared.
        if first.blocks != found.blocks {
            return Err(format!("it has no identifier, had {} blocks, and has {}", first.blocks, found.blocks));
        }
        if self.serial != serial {
            return Err(format!("it has no identifier, was on {}, and is on {serial}", self.serial));
        }
        Ok(())
    }
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> NamespaceInfo {
        NamespaceInfo {
            nsid: 1,
            blocks: 100,
            block_bytes: 4096,
            read_only: false,
            deallocated_reads_zeroes: true,
            optimal_write_bytes: None,
            access_group: 0,
            eui64: None,
            nguid: None,
            uuid: None,
        }
    }

    #[test]
    fn a_namespace_with_a_name_may_grow_and_must_keep_its_name_and_its_blocks() {
        let named = NamespaceInfo { uuid: Some([1; 16]), nguid: Some([2; 16]), eui64: Some([3; 8]), ..info() };
        let identity = Identity::new(&named, "A");
        assert_eq!(identity.check(&NamespaceInfo { blocks: 200, ..named.clone() }, "B"), Ok(()));
        for other in [
            NamespaceInfo { uuid: Some([9; 16]), ..named.clone() },
            NamespaceInfo { uuid: None, ..named.clone() },
            NamespaceInfo { nguid: Some([9; 16]), ..named.clone() },
            NamespaceInfo { eui64: Some([9; 8]), ..named.clone() },
            NamespaceInfo { block_bytes: 512, ..named.clone() },
        ] {
            assert!(identity.check(&other, "A").is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_namespace_without_a_name_must_keep_its_size_and_its_serial_number() {
        let identity = Identity::new(&info(), "A");
        assert_eq!(identity.check(&info(), "A"), Ok(()));
        assert!(identity.check(&NamespaceInfo { blocks: 200, ..info() }, "A").is_err());
        assert!(identity.check(&info(), "B").is_err());
    }
}
