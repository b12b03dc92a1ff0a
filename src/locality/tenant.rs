//! Who holds blocks.

/// Where a backend's blocks stand in the locality index: a dense slot, and the generation of the engine process that
/// holds them. A restarted engine gets a new generation, and entries of the old one mean nothing from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant {
    /// Dense index, reused as soon as it is free: the generation tells its tenants apart.
    pub slot: u32,
    /// Unique over the process; never reused.
    pub generation: u32,
}
