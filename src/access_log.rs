//! access_log
