//! What is said at the door of a process that may be asked to move.

use amdahl_migrate::Way;
use amdahl_migrate::door::{News, Request};

/// Lines, each as what is asked and as what is answered: read and written again they are the same.
pub(crate) fn lines(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(request) = Request::of_line(line) {
            let again = serde_json::to_vec(&request).expect("JSON");
            assert_eq!(Request::of_line(&again).as_ref(), Ok(&request));
            if let Ok(way) = request.to.parse::<Way>() {
                assert_eq!(way.to_string().parse::<Way>(), Ok(way));
            }
        }
        if let Ok(news) = serde_json::from_slice::<News>(line) {
            let again = serde_json::to_vec(&news).expect("JSON");
            let read = serde_json::from_slice::<News>(&again);
            assert_eq!(read.expect("what was just written"), news);
        }
    }
}
