"""Folders of configurations that a stranger wrote."""


def folder_of(cli, files):
    for name, text in files.items():
        file = cli.folder / "own" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (cli.folder / "module_of_mine.py").write_text("open('run.log', 'w').close()\nf = Launcher = None\n")
    return cli


CALLBACKS = 'trainer.callbacks=["module_of_mine.py:f"]'
