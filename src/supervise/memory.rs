//! Giving memory back in a long wait.

#![allow(unsafe_code)]

use libc::{c_int, c_void};
use nix::poll::{PollFd, PollTimeout, poll};

/// A wait that has taken so long, in milliseconds, is a long one. A short run has better things to do than to forget what it
/// is about to need.
const LONG: u16 = 100;

/// Waits for one of `fds` without end, as poll(2) does and with its errors. Once that takes long, gives memory back.
pub fn poll_at_rest(fds: &mut [PollFd<'_>]) -> nix::Result<()> {
    if poll(fds, LONG)? == 0 {
        forget_program_pages();
        poll(fds, PollTimeout::NONE)?;
    }
    Ok(())
}

/// Unmaps the pages of the program file that have been mapped so far: what start-up needed is not needed while we wait,
/// and what is will be mapped again, from the page cache, when it is touched.
pub fn forget_program_pages() {
    // SAFETY: the callback has the right type, takes no data, and is done with its argument when it returns.
    unsafe { libc::dl_iterate_phdr(Some(forget), std::ptr::null_mut()) };
}

/// Does it for the first object, which is the program itself, and ends the iteration.
unsafe extern "C" fn forget(info: *mut libc::dl_phdr_info, _size: usize, _data: *mut c_void) -> c_int {
    // SAFETY: the C library passes a valid description with `dlpi_phnum` headers. Only segments that are never written
    // are touched, so what is in memory is what is in the file, and dropping it loses nothing. The pages are whole: a
    // segment's first and last page hold nothing of a writable one, because the linker aligns those.
    unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let page = u64::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
        for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0)
        {
            let from = info.dlpi_addr + header.p_vaddr;
            let length = header.p_memsz + from % page;
            let from = (from - from % page) as *mut c_void;
            libc::madvise(from, usize::try_from(length).unwrap_or(0), libc::MADV_DONTNEED);
        }
    }
    1
}
