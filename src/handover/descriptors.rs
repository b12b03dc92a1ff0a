//! Descriptors over a Unix stream socket, by `SCM_RIGHTS`. They go with one byte of their own, so that no later read
//! can take them for another message's.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::MAX_LISTENERS;

/// The byte that descriptors come with.
const MARK: u8 = b'D';

const SPACE: usize = cmsg_space!(ScmRights(MAX_LISTENERS));

/// Sends these descriptors, at most [`MAX_LISTENERS`].
///
/// # Errors
/// As `sendmsg(2)`; `WouldBlock` where the stream does not block and is full.
pub(crate) fn send(stream: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The space is rounded up, so that more than this might fit.
    let is_bounded = descriptors.len() <= MAX_LISTENERS;
    if !is_bounded || !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more descriptors than can be handed over"));
    }
    sendmsg(stream, &[IoSlice::new(&[MARK])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`send`] sent. They are closed in processes that this one starts.
///
/// # Errors
/// As `recvmsg(2)`, at the stream's end, and when something else is there.
pub(crate) fn receive(stream: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut mark = [0];
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut mark)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    match received.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ if mark != [MARK] => Err(io::Error::new(io::ErrorKind::InvalidData, "no descriptors where they should be")),
        // Out of descriptors here, as `ulimit -n` has it.
        _ if received.flags.contains(ReturnFlags::CTRUNC) => {
            Err(io::Error::other("not all descriptors could be taken"))
        }
        _ => Ok(descriptors),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_sent_is_open_on_the_other_side_and_the_stream_goes_on_behind_it() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let pairs: Vec<_> = (0..MAX_LISTENERS).map(|_| UnixStream::pair().unwrap()).collect();
        let sent: Vec<_> = pairs.iter().map(|(left, _)| left.as_fd()).collect();
        send(&here, &sent).unwrap();
        here.write_all(b"next").unwrap();
        let received = receive(&there).unwrap();
        assert_eq!(received.len(), MAX_LISTENERS);
        for (number, (received, (_, right))) in received.into_iter().zip(&pairs).enumerate() {
            UnixStream::from(received).write_all(&[number as u8]).unwrap();
            let (mut byte, mut right) = ([0], right);
            right.read_exact(&mut byte).unwrap();
            assert_eq!(usize::from(byte[0]), number, "the order is kept");
        }
        let mut next = [0; 4];
        there.read_exact(&mut next).unwrap();
        assert_eq!(&next, b"next");
    }

    #[test]
    fn other_bytes_and_the_end_are_told_from_descriptors() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(b"{").unwrap();
        assert_eq!(receive(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(here);
        assert_eq!(receive(&there).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn more_than_fit_are_not_sent() {
        let (here, _there) = UnixStream::pair().unwrap();
        let too_many = vec![here.as_fd(); MAX_LISTENERS + 1];
        assert!(send(&here, &too_many).is_err());
    }
}
