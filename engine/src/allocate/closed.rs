//! The closed loop: clients that think, and a disk that is theirs for a share of the time.
