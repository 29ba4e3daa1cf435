"""Files as the package takes and makes them."""

import errno
import os
import pathlib
import platform
import shutil
import tempfile
import unittest
import unittest.mock

import choir
from choir import _files as files
from choir import runs


class Files(unittest.TestCase):
    def setUp(self):
        self.at = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.at)

    def test_files_are_replaced_atomically(self):
        file = self.at / "kept.json"
        files.save(file, "old")
        with unittest.mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full")):
            with self.assertRaisesRegex(choir.FileError, "kept.json: full"):
                files.save(file, "new")
        self.assertEqual(file.read_text(), "old")
        self.assertEqual(os.listdir(self.at), ["kept.json"])

    def test_special_files_are_neither_followed_nor_removed(self):
        (self.at / "target").write_text("1")
        (self.at / "link").symlink_to("target")
        os.mkfifo(self.at / "pipe")
        (self.at / "folder").mkdir()
        for name in ("link", "pipe", "folder"):
            for call in (lambda path: files.save(path, "text"), files.read):
                with self.assertRaisesRegex(choir.FormatError, f"{name}: is a "):
                    call(self.at / name)
        self.assertEqual(files.read(self.at / "link", given=True), b"1")  # the user named it
        with self.assertRaisesRegex(choir.FormatError, "target: has more than 0 bytes"):
            files.read(self.at / "target", 0)
        with self.assertRaisesRegex(choir.FormatError, "link: is a symbolic link"):
            files.copy(self.at / "link", self.at / "copy")
        self.assertEqual(sorted(os.listdir(self.at)), ["folder", "link", "pipe", "target"])

    def test_files_with_several_names_are_not_written_in_place(self):
        (self.at / "log").write_text("1")
        os.link(self.at / "log", self.at / "other")
        with self.assertRaisesRegex(choir.FormatError, "log: has 2 hard links"):
            files.opened(self.at / "log", os.O_WRONLY | os.O_APPEND)
        self.assertEqual(files.read(self.at / "log"), b"1")  # reading harms neither
        files.save(self.at / "log", "2")
        self.assertEqual((self.at / "other").read_text(), "1")

    def test_lines_are_added_whole(self):
        file = self.at / "results.jsonl"
        for line in ("one", "two"):
            files.append(file, line)
        self.assertEqual(file.read_text(), "one\ntwo\n")
        file.write_text("one\nha")  # of a process that was killed, or of a full disk
        files.append(file, "é")
        self.assertEqual(file.read_text(), "one\né\n")
        with unittest.mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "full")):
            with self.assertRaisesRegex(choir.FileError, "results.jsonl: full"):
                files.append(file, "more")
        (self.at / "link").symlink_to("results.jsonl")
        with self.assertRaisesRegex(choir.FormatError, "link: is a symbolic link"):
            files.append(self.at / "link", "more")
        files.save(self.at / "picture.png", b"\xff\x00")
        self.assertEqual((self.at / "picture.png").read_bytes(), b"\xff\x00")

    def test_only_leftovers_of_killed_processes_are_removed(self):
        file, mine = self.at / "left.json", f".left.json.{platform.node()}-"
        others = [mine + "1", mine + "backup", mine + "²", ".left.json.elsewhere-999999999"]
        for name in [*others, mine + "999999999"]:
            (self.at / name).touch()
        files.save(file, "new")
        self.assertEqual(sorted(os.listdir(self.at)), sorted([*others, "left.json"]))

    def test_names_are_one_component(self):
        for name in ("", ".", "..", "a/b", "/a", "a\nb", "a\0", "\udc80", "é" * 51):
            with self.assertRaisesRegex(choir.ArgumentError, "its name is"):
                files.component(name, "its name")
        self.assertEqual(files.component("my größe.1", "its name"), "my größe.1")

    def test_a_log_with_a_damaged_line_is_named(self):
        for text in ("3\n", "{\n", "[" * 9999 + "\n"):
            (self.at / "metrics.jsonl").write_text('{"event":"step"}\n' + text)
            with self.assertRaisesRegex(choir.FormatError, "metrics.jsonl: line 2: "):
                runs.lines(self.at)
        (self.at / "metrics.jsonl").write_text('{"event":"step"}\n{"eve')
        self.assertEqual(runs.lines(self.at), [{"event": "step"}])

    def test_steps_of_earlier_versions_have_a_learning_rate(self):
        (self.at / "metrics.jsonl").write_text(
            '{"event":"step","step":1,"rate":0.5}\n{"event":"step","step":2,"learning_rate":0.25}\n'
        )
        self.assertEqual(runs.metrics(self.at)["learning_rate"].tolist(), [0.5, 0.25])

    def test_error_kind_does_not_depend_on_the_path(self):
        (self.at / "No such file or directory").mkdir()
        with self.assertRaises(choir.FileError) as caught:
            choir.Config(self.at / "No such file or directory" / ("x" * 300))
        self.assertNotIsInstance(caught.exception, FileNotFoundError)


class Claims(unittest.TestCase):
    def setUp(self):
        self.at = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.at)

    def claimed(self):
        return files.claimed(self.at / "st", "runs", self.fail)

    def test_one_process_at_a_time_by_the_programs_rule(self):
        with self.claimed():
            self.assertEqual((self.at / "st" / "lock").read_text(), f"{os.getpid()}\n")
            with self.assertRaisesRegex(choir.BusyError, f"st: process {os.getpid()} is using it"), self.claimed():
                self.fail("taken twice")
        for left in ("", "12", "\0\0\0\0\n"):  # by a power failure
            (self.at / "st" / "lock").write_text(left)
            with self.claimed():
                pass

    def test_renamed_locks_are_opened_again(self):
        taken = []

        def lose(fd, parent, path, notice):
            taken.append(fd)
            if len(taken) == 1:
                os.unlink(path)

        with unittest.mock.patch.object(files, "_take", lose), self.claimed():
            self.assertEqual(len(taken), 2)

    def test_without_locks_it_says_so(self):
        message = []
        with unittest.mock.patch("fcntl.flock", side_effect=OSError(errno.ENOLCK, "none")):
            with files.claimed(self.at / "st", "runs", message.append):
                self.assertRegex(message[0], "lock: this file system has no locks")


if __name__ == "__main__":
    unittest.main()
