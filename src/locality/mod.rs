//! locality
