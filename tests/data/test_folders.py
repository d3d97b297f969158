import importlib.util
import sys

import numpy as np
import pytest

from credo.core.errors import DataError, SettingError
from credo.data.folders import read_folder
from credo.data.image_sets import read_images
from credo.report.png import png

needs_pillow = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None, reason="Pillow is not installed"
)


def put(path, *shape, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, shape or (4, 5), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(pixels))
    return pixels


@needs_pillow
def test_images_are_read_in_order_with_sub_folders_as_labels(tmp_path):
    made = [
        put(tmp_path / kind / f"{k}.png", seed=10 * k + ord(kind))
        for kind in "ab"
        for k in range(2)
    ]
    x, labels = read_folder(tmp_path)
    assert (
        np.array_equal(x, np.stack(made))
        and labels is not None
        and labels.tolist() == ["a", "a", "b", "b"]
    )
    found = read_images(tmp_path)
    assert np.allclose(found.x, x / 255) and found.levels == 256 and found.labels is not None


@needs_pillow
def test_a_folder_without_sub_folders_has_no_labels_and_colour_spreads_to_all(tmp_path):
    put(tmp_path / "a.png")
    colour = put(tmp_path / "b.PNG", 4, 5, 3)
    (tmp_path / "notes.txt").write_text("not an image")
    x, labels = read_folder(tmp_path)
    assert x.shape == (2, 3, 4, 5) and labels is None
    assert np.array_equal(x[1], np.moveaxis(colour, -1, 0)) and (x[0, 0] == x[0, 2]).all()


@needs_pillow
def test_sizes_must_agree_unless_one_is_given(tmp_path):
    put(tmp_path / "a.png"), put(tmp_path / "b.png", 6, 7)
    with pytest.raises(DataError, match=r"b.png has 6 x 7 pixels, but .*a.png has 4 x 5"):
        read_folder(tmp_path)
    assert read_folder(tmp_path, (3, 2))[0].shape == (2, 3, 2)


@needs_pillow
def test_train_and_test_folders_are_the_split(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        for k in range(count):
            put(tmp_path / part / "kind" / f"{k}.png")
    found = read_images(tmp_path)
    assert len(found.x) == 3 and found.test_x is not None and len(found.test_x) == 2
    assert found.test_labels is not None and set(found.test_labels) == {"kind"}


@needs_pillow
def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match="a.png cannot be read"):
        read_folder(tmp_path)


def test_folders_without_order_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        read_folder(tmp_path)
    put(tmp_path / "a.png"), put(tmp_path / "kind" / "b.png")
    with pytest.raises(DataError, match="both in itself and in sub-folders"):
        read_folder(tmp_path)


def test_without_pillow_the_message_says_what_to_install(tmp_path, monkeypatch):
    put(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SettingError, match="needs the package 'pillow'"):
        read_folder(tmp_path)
