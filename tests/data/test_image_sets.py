import numpy as np
import pytest
from safetensors.numpy import save_file

from credo.core.errors import DataError, SettingError
from credo.data.image_sets import Images, evenly, read_images


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No data sets but the embedded ones and those a test puts there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CREDO_DATA", raising=False)
    monkeypatch.delenv("CREDO_DATA_URL", raising=False)
    monkeypatch.chdir(tmp_path)


def grey(n=6, *shape, top=255, seed=0):
    values = np.random.default_rng(seed).integers(0, top + 1, (n, *(shape or (4, 5))))
    values.flat[:2] = 0, top
    return values.astype(np.uint8)


def test_digits_are_images_of_17_levels():
    found = read_images("digits")
    assert found.x.shape == (1797, 8, 8) and found.x.dtype == np.float32 and found.levels == 17
    assert (found.x.min(), found.x.max()) == (0, 1) and np.array_equal(
        found.x * 16, (found.x * 16).round()
    )
    assert (
        found.labels is not None
        and found.labels.shape == (1797,)
        and found.test_x is None
        and not found.binary
    )


def test_a_name_wins_over_a_path_of_the_same_name(tmp_path):
    (tmp_path / "digits").mkdir()
    assert read_images("digits").levels == 17
    with pytest.raises(DataError, match="holds no images"):
        read_images("./digits")


def test_array_files_of_every_kind_give_the_same_images(tmp_path):
    x, y = grey(), np.arange(6)
    np.save("a.npy", x)
    np.savez("a.npz", x=x, y=y)
    np.savez("split.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    save_file({"x": x, "y": y}, "a.safetensors")
    save_file({"whatever": x}, "one.safetensors")
    for name in ("a.npy", "a.npz", tmp_path / "a.safetensors", "one.safetensors"):
        assert np.allclose(read_images(name).x, x / 255)
    assert read_images("a.npy").labels is None
    split = read_images("split.npz")
    assert split.test_x is not None and np.allclose(split.test_x, x[4:] / 255)
    assert np.array_equal(split.labels, y[:4]) and np.array_equal(split.test_labels, y[4:])
    assert split.held_out() is split


@pytest.mark.parametrize(
    ("array", "shape", "levels"),
    [
        (grey(6, 4, 5), (4, 5), 256),
        (grey(6, 1, 4, 5), (4, 5), 256),
        (grey(6, 4, 5, 1), (4, 5), 256),
        (grey(6, 3, 4, 5), (3, 4, 5), 256),
        (grey(6, 4, 5, 3), (3, 4, 5), 256),
        (grey(6, 4, 5, top=1), (4, 5), 2),
        (grey(6, 4, 5, top=1).astype(bool), (4, 5), 2),
        (grey(6, 4, 5).astype(np.int64), (4, 5), 256),
        (grey(6, 4, 5) / 255, (4, 5), 256),
        (grey(6, 20), (20,), 256),
    ],
)
def test_pixels_become_floats_with_channels_first(array, shape, levels):
    np.save("a.npy", array)
    found = read_images("a.npy")
    assert found.shape == shape and found.levels == levels and found.binary == (levels == 2)
    assert found.x.dtype == np.float32 and (found.x.min(), found.x.max()) == (0, 1)


def test_the_last_channel_of_colour_moves_to_the_front():
    x = grey(2, 4, 5, 3)
    np.save("a.npy", x)
    assert np.allclose(read_images("a.npy").x[1, 2], x[1, :, :, 2] / 255)


def test_flat_rows_are_images_only_where_a_size_says_so():
    np.save("a.npy", grey(6, 20))
    assert read_images("a.npy", (4, 5)).shape == (4, 5)
    with pytest.raises(DataError, match="rows of 20 numbers, which are no images of 3 x 5"):
        read_images("a.npy", (3, 5))
    np.save("b.npy", grey(6, 4, 5))
    with pytest.raises(DataError, match="only a folder's can be resized"):
        read_images("b.npy", (8, 8))


def test_labels_may_come_from_a_file_of_their_own():
    x = grey()
    np.save("a.npy", x)
    np.savez("split.npz", x_train=x[:4], x_test=x[4:])
    np.save("y.npy", np.array(list("abcdef")))
    assert "".join(read_images("a.npy", labels="y.npy").labels) == "abcdef"
    split = read_images("split.npz", labels="y.npy")
    assert "".join(split.labels) == "abcd" and "".join(split.test_labels) == "ef"
    np.save("short.npy", np.arange(4))
    np.savez("two.npz", a=np.arange(6), b=np.arange(6))
    for name, message in [
        ("short.npy", "4 for training, then 2"),
        ("two.npz", "several arrays"),
        ("no.npy", "does not exist"),
    ]:
        with pytest.raises(DataError, match=message):
            read_images("split.npz", labels=name)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((3, 2, 2), 300), "from 300 to 300"),
        (np.full((3, 2, 2), -1), "from -1 to -1"),
        (np.array([[[0.0, 1.5]]]), "from 0 to 1.5; expected pixels"),
        (np.full((3, 2, 2), np.nan), "from nan to nan"),
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((0, 2, 2)), r"shape \(0, 2, 2\)"),
        (np.zeros((3, 2, 4, 5)), "expected 1 or 3 channels"),
        (np.array([["a"]]), "expected numbers"),
    ],
)
def test_arrays_that_are_no_images_are_refused(array, message):
    np.save("a.npy", array)
    with pytest.raises(DataError, match=message):
        read_images("a.npy")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "a.npz").write_text("hello")
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "a.safetensors").write_bytes(b"1")
    (tmp_path / "a.csv").write_text("1,2")
    np.savez("keys.npz", a=grey(), b=grey())
    np.savez("shapes.npz", x_train=grey(6, 4, 5), x_test=grey(6, 5, 5))
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("a.npz", "a.npy", "a.safetensors", "objects.npy"):
        with pytest.raises(DataError, match="not a readable"):
            read_images(name)
    for name, message in [
        ("a.csv", "ends in '.csv'"),
        ("none.npy", "does not exist"),
        ("keys.npz", "holds a, b; expected images under x"),
        ("shapes.npz", "expected one shape"),
        ("diabetess", "Did you mean 'diabetes'"),
        ("wine", "expected pixels"),
    ]:
        with pytest.raises(DataError, match=message):
            read_images(name)


def test_some_images_are_held_out_the_same_every_time():
    x = np.linspace(0, 1, 50, dtype=np.float32).reshape(50, 1, 1)
    images = Images(x, np.arange(50))
    first, again, other = images.held_out(0.2), images.held_out(0.2), images.held_out(0.2, seed=1)
    assert len(first.x) == 40 and first.test_x is not None and len(first.test_x) == 10
    assert np.array_equal(first.test_x, again.test_x) and not np.array_equal(
        first.test_x, other.test_x
    )
    assert set(first.x.ravel()) | set(first.test_x.ravel()) == set(x.ravel())
    assert np.allclose(first.test_x.ravel(), x.ravel()[first.test_labels])
    with pytest.raises(SettingError, match="share=1.5"):
        images.held_out(1.5)
    with pytest.raises(DataError, match="too few"):
        Images(x[:1]).held_out()


def test_fewer_images_are_evenly_spread():
    images = Images(np.zeros((10, 1, 1), np.float32), np.arange(10))
    assert (
        images.limited(5).labels.tolist() == [0, 2, 4, 6, 8]
        and images.limited(None) is images.limited(10) is images
    )
    assert evenly(3, 7).tolist() == [0, 1, 2] and len(set(evenly(1797, 1000))) == 1000
    with pytest.raises(SettingError, match="limit=0"):
        images.limited(0)
